# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Transformers: the cache (cache.py), what its update() returns (handle.py), attention and masks."""
