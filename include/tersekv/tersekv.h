// SPDX-License-Identifier: Apache-2.0
// Everything of the C++ library. Hosts have headers of their own (tersekv/llama.h).
#pragma once

#include "tersekv/attention.h"
#include "tersekv/cache.h"
#include "tersekv/calibration.h"
#include "tersekv/codec.h"
#include "tersekv/logits.h"
#include "tersekv/profile.h"
#include "tersekv/rope.h"
#include "tersekv/session.h"
#include "tersekv/spec.h"
#include "tersekv/status.h"
#include "tersekv/version.h"
