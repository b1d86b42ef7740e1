# SPDX-License-Identifier: Apache-2.0
"""TerseCache: a drop-in cache for generate() whose attention layers stay packed."""
import contextlib
import copy
import warnings
import weakref

import torch
from transformers.cache_utils import Cache, DynamicCache

from tersekv import _arrays, _core
from tersekv.hf import attention, compat, fold
from tersekv.hf.layer import TerseLayer, simd_backend
from tersekv.hf.options import choose_spec, protected
from tersekv.hf.plan import BatchPlan, core_rows, plan_of
from tersekv.hf.store import Store
from tersekv.hf.undo import Undo

PACKED_TYPES = ("full_attention", "sliding_attention")


class TerseCache(DynamicCache):
    """A packed KV cache: model.generate(**inputs, past_key_values=TerseCache(kv="k4v4")).

    How to store: kv= a spec ("k4v4", "kivi-k4v2", "f16", ...), or compression= "safe", "balanced", "compact" or
    "aggressive", or key_bits= and value_bits=; without any, k4v4.
    config: of the model; TerseCache.for_model(model) passes it. Models with sliding windows or layers of other kinds
    need it. protect_first, protect_last, protected_layers (negative: from the end): cached layers that stay raw.
    profile: a path or a Profile; bits= the average bits that its table lays out over layers, K and V, in place of kv=.
    prefill: "raw" (a prompt attends its own raw keys and values, as stock caches do) or "decode" (every token sees what
    decoding at its place would see: slower, independent of how a prompt is cut).
    arithmetic: "int16" (default), "exact" or "fast", as docs/numerics.md has it. byte_budget: limit of all
    bytes that it takes, scratch included (0: none); what does not fit raises MemoryError. A forward pass that fails in
    any layer is taken back in all of them. fold_output_rotation: the model's weights take in the rotation of the values
    (fold.py), so that outputs need none back; with for_model, which folds a model that is not.
    device: None (where the model's keys arrive), "cpu" or "cuda". On CUDA pages and
    raw rows lie in device memory, and some things differ (docs/python.md). A cache is for one thread at a time; deep copies
    of it may run in other ones (on CUDA: in the same one).

    The model's attention must be 'tersekv' (patch_model(model), or attn_implementation="tersekv"): it computes from packed
    pages. With any other one the cache still answers rightly by decoding its history each step, and warns once.
    """

    def __init__(self, config=None, kv=None, *, compression=None, key_bits=None, value_bits=None, protect_first=0,
                 protect_last=0, protected_layers=(), prefill="raw", arithmetic="int16", byte_budget=0, device=None,
                 fold_output_rotation=False, profile=None, bits=None, offloading=False):
        self.device = None if device is None else _arrays.check_device(device)
        if isinstance(config, str) and kv is None:
            config, kv = None, config
        if offloading:
            raise ValueError("a TerseCache does not offload: layers would leave before attention has read them; "
                             "use fewer bits or byte_budget")
        if bits is not None and profile is None:
            raise ValueError(f"bits={bits!r} are laid out over layers as a profile says: pass profile= with it, or kv=")
        self.spec = choose_spec(kv, compression, key_bits, value_bits, bits)
        self.prefill, self.config = prefill, None
        self._check_spec(64, profile is not None, prefill, arithmetic)
        self.store = Store(prefill, arithmetic, byte_budget)
        self.fold = fold.demand(config, self.spec, profile) if fold_output_rotation else None
        self.store.values_rotated = self.fold is not None
        self._start()
        self._protect = (protect_first, protect_last, tuple(protected_layers))
        if config is None:
            if profile is not None or any(self._protect):
                raise ValueError("profile and protected layers need the model's config: TerseCache.for_model(model, ...)")
            Cache.__init__(self, layers=[])
            return
        self._use_config(config, profile, bits)

    def _start(self):
        self.rows, self.slots, self.stored, self.explained = [], 0, None, set()
        self._model, self._folded, self.undo = None, None, Undo()
        weakref.finalize(self, self.store.remove, self.rows)

    def _use_config(self, config, profile, bits):
        self.config = decoder = compat.decoder_config(config)
        if compat.uses_latent_attention(decoder):
            raise ValueError(f"'{decoder.model_type}' caches latents (MLA, kv_lora_rank): this version packs keys and "
                             "values only; use DynamicCache")
        plan = compat.layer_plan(decoder)
        cached = [index for index, (kind, _) in enumerate(plan) if kind in PACKED_TYPES]
        if not cached:
            raise ValueError(f"'{decoder.model_type}' has no attention layers that could be packed "
                             f"({', '.join(sorted({kind for kind, _ in plan}))})")
        raw = protected(len(cached), *self._protect)
        if profile is not None:
            from tersekv.hf.profiles import use_profile
            use_profile(self, profile, len(cached), bits)
        layers = []
        for index, (kind, arguments) in enumerate(plan):
            if kind not in PACKED_TYPES:
                layers.append(compat.stock_layer(kind, arguments))
                continue
            ordinal = cached.index(index)
            spec = self._raw_spec() if ordinal in raw else self.spec
            window = arguments.get("sliding_window") if kind == "sliding_attention" else None
            layers.append(TerseLayer(self, index, ordinal, spec, window))
        self._check_head_dim(decoder)
        Cache.__init__(self, layers=layers)

    def _raw_spec(self):
        return "bf16" if getattr(self.config, "dtype", None) == torch.bfloat16 else "f16"

    def _check_spec(self, head_dim, with_profile, prefill="raw", arithmetic="int16"):
        """What cannot be is refused now, not at the first token."""
        stats = [[0.0] * head_dim, [1.0] * head_dim] * 2 if with_profile else None
        _core.LayerCache(_core.Memory(0), self.spec, 1, 1, head_dim, head_dim, 0, prefill, arithmetic, stats=stats)

    def _check_head_dim(self, config):
        heads = getattr(config, "num_attention_heads", None)
        d = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else None)
        if isinstance(d, int):
            self._check_spec(d, self.store.layer_stats is not None)

    # -- ways to make one ----------------------------------------------------------------------------------------------
    @classmethod
    def for_model(cls, model, kv=None, **options):
        """A cache for this model's layers. Warns when the model's attention is not 'tersekv' (patch_model sets it)."""
        if options.get("profile") is not None:
            from tersekv.hf import profiles
            options["profile"] = profiles.load(options["profile"])
            profiles.check_model(options["profile"], model)
        if options.get("fold_output_rotation") and fold.of(model.config) is None:
            choice = {name: options.get(name) for name in ("compression", "key_bits", "value_bits", "bits")}
            fold.check_spec(choose_spec(kv, **choice))
            if options.get("profile") is not None:
                raise ValueError("the profile is of the model before fold_output_rotation: call "
                                 "tersekv.fold_output_rotation(model) first, then measure the profile")
            fold.fold_output_rotation(model)
        cache = cls(model.config, kv, **options)
        if (other := cache.foreign_attention()) is not None:
            warnings.warn(f"the model's attention is '{other}': the cache will decode its history each step; "
                          "tersekv.patch_model(model) makes it compute from packed pages", RuntimeWarning, stacklevel=2)
        return cache

    @classmethod
    def from_pretrained_model(cls, model, tokenizer=None, return_report=False, mode="balanced", **options):
        """Measures the model's keys and values, takes the recommended bits and their statistics.

        options: of measure_kv_norm_ratio (text, input_ids, max_tokens) and of TerseCache. -> cache, or (cache, report).
        """
        from tersekv import reports
        measuring = {name: options.pop(name) for name in ("text", "input_ids", "max_tokens") if name in options}
        report = reports.measure_kv_norm_ratio(model, tokenizer, **measuring)
        packed_layers = sum(kind in PACKED_TYPES for kind, _ in compat.layer_plan(compat.decoder_config(model.config)))
        if packed_layers == len(report.layers):  # shared layers attend with keys of others
            options.setdefault("profile", report.profile)
        cache = cls.for_model(model, reports.recommend_bits(report, mode)["spec"], **options)
        return (cache, report) if return_report else cache

    # -- batch ---------------------------------------------------------------------------------------------------------
    def open_batch(self, batch):
        if not self.rows:
            self.rows.extend(self.store.new_sequence() for _ in range(batch))
        if len(self.rows) != batch:
            raise ValueError(f"the cache holds a batch of {len(self.rows)} and got one of {batch}: call reset() first, "
                             "or use another cache")

    def query_heads(self, kv_heads):
        heads = getattr(self.config, "num_attention_heads", None)
        return heads if isinstance(heads, int) and heads % kv_heads == 0 else kv_heads

    def check_model(self, config):
        """Tokens of one model are noise to another one, even where shapes agree."""
        self.check_fold(config)
        if self._model is None or not self.holds_tokens(self.slots):
            self._model = config
        elif config is not None and config is not self._model:
            raise ValueError("this cache holds tokens of another model: call reset(), or make one cache a model")

    def check_fold(self, config):
        """So are values that a model gave before it was folded, or after."""
        config = self.config if config is None else config
        if config is None or not (fold.any_known() or self.fold or self._folded):
            return
        folded = fold.of(config)
        if self.fold is not None and folded is not self.fold:
            raise ValueError("this cache is for the model as it was folded (fold_output_rotation), and the model was "
                             "unfolded since: make another cache")
        if not self.holds_tokens(self.slots):
            self._folded = folded
        elif folded is not self._folded:
            raise ValueError("the model was folded or unfolded (fold_output_rotation) since this cache got its tokens: "
                             "call reset(), or make another cache")

    def foreign_attention(self):
        """The model's attention when it is known and another one than 'tersekv'."""
        name = None if self.config is None else getattr(self.config, "_attn_implementation", None)
        return None if name in (None, attention.NAME) else name

    def plan(self, mask, pending):
        return plan_of(self, mask, pending)

    def core_rows(self, valid, start, n):
        return core_rows(self.rows, valid, start, n)

    def holds_tokens(self, slots):
        """Whether any row has a token before this slot."""
        return slots > 0 and (self.stored is None or bool(self.stored[:, :slots].any()))

    def note(self, start, end, valid: BatchPlan | None):
        """Slots [start, end) are stored in one more layer."""
        if end <= self.slots:
            return
        if self.stored is None and valid is None:
            self.slots = end
            return
        grown = torch.ones(len(self.rows), end, dtype=torch.bool)
        if self.stored is not None:
            grown[:, :self.slots] = self.stored[:, :self.slots]
        if valid is not None:
            grown[:, start:end] = valid.chunk
        self.stored, self.slots = grown, end

    # -- what Transformers calls ---------------------------------------------------------------------------------------
    @torch.compiler.disable(reason=compat.NO_GRAPH)
    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        while self.config is None and len(self.layers) <= layer_idx:
            self.layers.append(TerseLayer(self, len(self.layers), len(self.layers), self.spec))
        if layer_idx >= len(self.layers):
            raise ValueError(f"layer {layer_idx} is not there: this cache was made for a model of {len(self.layers)} "
                             "layers")
        return self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)

    def _packed(self):
        return [layer for layer in self.layers if isinstance(layer, TerseLayer)]

    def _stock(self):
        return [layer for layer in self.layers if not isinstance(layer, TerseLayer)]

    @contextlib.contextmanager
    def _others(self, name, *arguments):
        """Layers of other kinds first: they may refuse. They go back when the block fails, so it is all or nothing."""
        saved = [(layer, {key: dict(value) if isinstance(value, dict) else value for key, value in vars(layer).items()})
                 for layer in self._stock()]
        try:
            for layer in self._stock():
                getattr(layer, name)(*arguments)
            yield
        except BaseException:
            for layer, state in saved:
                vars(layer).clear()
                vars(layer).update(state)
            raise

    def _flush(self):
        self.undo.check()
        for layer in self._packed():
            layer.flush()
            layer.epoch += 1
        self.undo.settle(self)

    def reset(self):
        self._empty()
        for layer in self._packed():
            layer.record_past = False

    def _empty(self):
        for layer in self._packed():
            layer.pending, layer.length = None, 0
            layer.epoch += 1
        self.store.remove(self.rows)
        self.rows.clear()
        self.slots, self.stored, self._model, self._folded, self.undo = 0, None, None, None, Undo()
        for layer in self._stock():
            layer.reset()

    def _take_rows(self, indices):
        """Batch row i becomes what row indices[i] was: the first taker keeps the sequence, others fork it."""
        old, taken, again = list(self.rows), {}, []
        for place, index in enumerate(indices):
            if taken.setdefault(old[index], place) != place:
                again.append(place)
        new = [old[index] for index in indices]
        for place, copy_of in zip(again, self.store.forks([new[place] for place in again])):
            new[place] = copy_of
        self.store.remove(sequence for sequence in old if sequence not in taken)
        self.rows[:] = new
        if self.stored is not None:
            self.stored = self.stored[list(indices)]

    def _take(self, name, argument, indices):
        self._flush()
        with self._others(name, argument):
            if self.rows:
                self._take_rows(indices())

    def reorder_cache(self, beam_idx):
        self._take("reorder_cache", beam_idx, beam_idx.tolist)

    def batch_repeat_interleave(self, repeats):
        self._take("batch_repeat_interleave", repeats,
                   lambda: [row for row in range(len(self.rows)) for _ in range(int(repeats))])

    def batch_select_indices(self, indices):
        self._take("batch_select_indices", indices, lambda: torch.arange(len(self.rows))[
            indices.cpu() if torch.is_tensor(indices) else indices].reshape(-1).tolist())

    def crop(self, tokens_to_remove=None, max_length=None):
        """Forgets the newest slots: a negative number of them, or (as earlier releases have it) a positive length.

        What cannot be done (layers of other kinds that hold no past) raises and changes nothing.
        """
        n = int(max_length if tokens_to_remove is None else tokens_to_remove)
        self._flush()
        keep = min(n, self.slots) if n > 0 else max(self.slots + n, 0)
        removed = self.slots - keep
        if keep == 0 and removed > 0:
            self._empty()
            return
        for index, layer in enumerate(self.layers) if removed > 0 else ():
            if not getattr(layer, "is_croppable", True):
                raise RuntimeError(f"layer {index} ({type(layer).__name__}) holds no past to crop back to: call reset() "
                                   "and run the prompt again")
            back = self.store.rollbacks.get(index, 0)
            if isinstance(layer, TerseLayer) and layer.is_sliding and layer.length > layer.window and removed > back:
                raise RuntimeError(f"crop by {removed} tokens: layer {index} keeps {back} tokens beside its window of "
                                   f"{layer.window}; crop fewer, or reset() and run the prompt again")
        with self._others("crop", -removed):
            self.store.crop(self.rows, keep, self.stored)
        self.stored = None if self.stored is None else self.stored[:, :keep].clone()
        for layer in self._packed():
            layer.length = min(layer.length, keep)
        self.slots = keep

    def __deepcopy__(self, memo):
        """A copy that shares packed pages (copy on write), for prompts that several generations start from."""
        with self.store.lock:  # several threads may copy one prompt
            self._flush()
            layers = [copy.copy(layer) if isinstance(layer, TerseLayer) else copy.deepcopy(layer, memo)
                      for layer in self.layers]
            rows = self.store.forks(self.rows)
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(self.__dict__)
        twin._start()
        twin.rows.extend(rows)
        twin.explained, twin.layers = set(self.explained), layers
        twin.slots, twin._model, twin._folded = self.slots, self._model, self._folded
        twin.stored = None if self.stored is None else self.stored.clone()
        for layer in twin._packed():
            layer.owner, layer.pending = twin, None
        return twin

    def __reduce_ex__(self, protocol):
        raise TypeError("a TerseCache cannot be pickled: it is memory of this process; copy.deepcopy shares its pages")

    # -- what it takes -------------------------------------------------------------------------------------------------
    def stats(self):
        """Allocated bytes and what is in them; per layer under 'layers'. 'ratio' is float16 bytes over bytes used."""
        total = {"bytes_used": 0, "bytes_f16": 0, "tokens": 0, "tokens_packed": 0}
        rows, reserved, scratch, stock = [], 0, 0, 0
        for layer in self._packed():
            layer.flush()
        self.undo.settle_if_whole(self)
        for layer in self.layers:
            if not isinstance(layer, TerseLayer):
                tensors = [value for value in vars(layer).values() if torch.is_tensor(value)]
                stock += sum(t.numel() * t.element_size() for t in tensors)
                continue
            usage = layer.usage()
            if usage is None:
                continue
            reserved, scratch = usage["bytes_reserved"], usage["scratch"]
            rows.append({"layer": layer.index, "spec": layer.spec, **{key: usage[key] for key in total},
                         "bits_effective": usage["bits_effective"]})
            for key in total:
                total[key] += usage[key]
        used, device = total["bytes_used"], {}
        if self.store.pages is not None:
            from tersekv.hf.device import backend_name
            device = backend_name(self.store)
        return {"spec": self.spec, "backend": simd_backend(), "prefill": self.prefill, "batch": len(self.rows),
                "slots": self.slots, **total, "ratio": total["bytes_f16"] / used if used else 0.0,
                "bytes_reserved": reserved, "bytes_scratch": scratch, "bytes_stock_layers": stock,
                "decodes_because_of": sorted(self.explained), "layers": rows, **device}
