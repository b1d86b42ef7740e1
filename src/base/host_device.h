// SPDX-License-Identifier: Apache-2.0
// Marks mathematics that is compiled for the host and, under nvcc, for the device: one definition for both.
#pragma once

#ifdef __CUDACC__
#define TERSEKV_HOST_DEVICE __host__ __device__
#else
#define TERSEKV_HOST_DEVICE
#endif
