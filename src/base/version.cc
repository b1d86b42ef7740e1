// SPDX-License-Identifier: Apache-2.0
#include "tersekv/version.h"

#include "tersekv_commit.h"  // made by the build

namespace tersekv {
namespace {
#define TERSEKV_TEXT_(x) #x
#define TERSEKV_TEXT(x) TERSEKV_TEXT_(x)
constexpr char kVersion[] =
    TERSEKV_TEXT(TERSEKV_VERSION_MAJOR) "." TERSEKV_TEXT(TERSEKV_VERSION_MINOR) "." TERSEKV_TEXT(TERSEKV_VERSION_PATCH);
}  // namespace

const char* Version() { return kVersion; }
const char* Commit() { return TERSEKV_COMMIT; }

}  // namespace tersekv
