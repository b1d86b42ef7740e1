# SPDX-License-Identifier: Apache-2.0
"""llama.h by ctypes, for a Python process that was started with libtersekv_preload.so in LD_PRELOAD."""
import ctypes
import glob

c_int, c_bool, c_size, c_text, pointer = ctypes.c_int32, ctypes.c_bool, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p


class ModelParams(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 512)]


class ContextParams(ctypes.Structure):  # what a caller sets, and room
    _fields_ = [(n, ctypes.c_uint32) for n in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max")] + [
        ("counts_and_kinds", c_int * 9), ("flash_attn_type", c_int), ("rope", c_int * 12), ("type_k", c_int), ("type_v", c_int),
        ("flags", c_bool * 20), ("swa_full", c_bool), ("kv_unified", c_bool), ("rest", ctypes.c_char * 378)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", c_int), ("token", ctypes.POINTER(c_int)), ("embd", pointer), ("pos", ctypes.POINTER(c_int)),
                ("n_seq_id", ctypes.POINTER(c_int)), ("seq_id", ctypes.POINTER(ctypes.POINTER(c_int))),
                ("logits", ctypes.POINTER(ctypes.c_int8))]


def engine(llama_bin):
    """The functions as a program's loader would find them: the object in front comes first."""
    ctypes.CDLL(glob.glob(f"{llama_bin}/../lib/libllama.so")[0], mode=ctypes.RTLD_GLOBAL)
    return declare(ctypes.CDLL(None))


def declare(e):
    """The library with the kinds of its functions' arguments."""
    for name, result, *arguments in (
            ("llama_log_set", None, pointer, pointer),
            ("llama_model_default_params", ModelParams), ("llama_context_default_params", ContextParams),
            ("llama_model_load_from_file", pointer, c_text, ModelParams),
            ("llama_init_from_model", pointer, pointer, ContextParams),
            ("llama_get_memory", pointer, pointer), ("llama_free", None, pointer), ("llama_model_free", None, pointer),
            ("llama_n_ctx", ctypes.c_uint32, pointer),
            ("llama_decode", c_int, pointer, Batch),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), pointer, c_int),
            ("llama_memory_clear", None, pointer, c_bool),
            ("llama_memory_seq_cp", None, pointer, c_int, c_int, c_int, c_int),
            ("llama_memory_seq_rm", c_bool, pointer, c_int, c_int, c_int),
            ("llama_memory_seq_pos_max", c_int, pointer, c_int), ("llama_memory_seq_pos_min", c_int, pointer, c_int),
            ("llama_memory_can_shift", c_bool, pointer),
            ("llama_state_seq_get_size_ext", c_size, pointer, c_int, c_int),
            ("llama_state_seq_get_data_ext", c_size, pointer, pointer, c_size, c_int, c_int),
            ("llama_state_seq_set_data_ext", c_size, pointer, pointer, c_size, c_int, c_int),
            ("llama_state_save_file", c_bool, pointer, c_text, pointer, c_size),
            ("llama_state_seq_save_file", c_size, pointer, c_text, c_int, pointer, c_size),
            ("llama_state_seq_load_file", c_size, pointer, c_text, c_int, pointer, c_size, pointer)):
        function = getattr(e, name)
        function.restype, function.argtypes = result, arguments
    return e


QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, c_text, pointer)(lambda *_: None)


def open_context(e, model_path, **numbers):
    """(model, context, memory)"""
    e.llama_log_set(ctypes.cast(QUIET, pointer), None)
    model = e.llama_model_load_from_file(str(model_path).encode(), e.llama_model_default_params())
    params = e.llama_context_default_params()
    for name, value in numbers.items():
        setattr(params, name, value)
    context = e.llama_init_from_model(model, params)
    assert model and context, (model, context)
    return model, context, e.llama_get_memory(context)


def decode(e, context, tokens):
    """tokens: (id, position, sequences, whether its logits are wanted) each. The code of llama_decode."""
    n = len(tokens)
    lists = [(c_int * len(t[2]))(*t[2]) for t in tokens]
    batch = Batch(n, (c_int * n)(*[t[0] for t in tokens]), None, (c_int * n)(*[t[1] for t in tokens]),
                  (c_int * n)(*map(len, lists)),
                  (ctypes.POINTER(c_int) * n)(*[ctypes.cast(s, ctypes.POINTER(c_int)) for s in lists]),
                  (ctypes.c_int8 * n)(*[bool(t[3]) for t in tokens]))
    return e.llama_decode(context, batch)
