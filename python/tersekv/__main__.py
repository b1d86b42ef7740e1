# SPDX-License-Identifier: Apache-2.0
import sys

from tersekv.cli import main

sys.exit(main())
