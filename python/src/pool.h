// SPDX-License-Identifier: Apache-2.0
// The threads that all codecs and caches of a process share.
#pragma once

#include <functional>

namespace tersekv::python {

// Threads that Run uses, the caller's included. Default: TERSEKV_THREADS, else one a core.
int NumThreads();
void SetNumThreads(int n);  // n >= 1
// Calls work(worker, workers) on at most `limit` workers at once; callers take turns. Without the GIL. A forked child
// gets threads of its own.
void RunOnThreads(int limit, const std::function<void(int, int)>& work);

}  // namespace tersekv::python
