# SPDX-License-Identifier: Apache-2.0
import sys

USAGE = """usage: python -m tersekv doctor    checks this installation
"""


def main(arguments):
    if arguments == ["doctor"]:
        from tersekv import doctor
        return doctor.main()
    print(USAGE, end="", file=sys.stdout if arguments in (["-h"], ["--help"]) else sys.stderr)
    return 0 if arguments in (["-h"], ["--help"]) else 2


sys.exit(main(sys.argv[1:]))
