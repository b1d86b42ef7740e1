# SPDX-License-Identifier: Apache-2.0
"""Decode steps of a model and its packed cache as one CUDA graph: the host sends one launch a token."""
import torch

from tersekv.hf.pages import Step


class DecodeGraph:
    """After a prompt has run: graph = DecodeGraph(model, cache); logits = graph.step(next_ids).

    model: its attention is 'tersekv' and all its attention layers are packed; no dense 4-D masks. cache: a TerseCache that
    holds the prompt on CUDA; rows of a left-padded batch are right without further masks. max_new_tokens: steps that the
    graph may take, for which pages are reserved now (RuntimeError beyond). Plain forward passes, crop and reorder may come
    in between. Not for several threads. close() lets the cache's memory grow again.
    """

    def __init__(self, model, cache, max_new_tokens=256):
        pages = cache.store.pages
        if pages is None or not cache.rows or cache.slots == 0:
            raise ValueError("DecodeGraph needs a TerseCache that holds a prompt on CUDA: run model(input_ids, "
                             "past_key_values=cache) first")
        if (other := cache.foreign_attention()) is not None:
            raise ValueError(f"the model's attention is '{other}': call tersekv.patch_model(model) first")
        if cache._stock():
            raise ValueError("this model has layers that are not packed (convolutions, recurrent states): their state is "
                             "not captured; use plain forward passes")
        if missing := sorted({core.no_kernel for core in pages.cores if core.no_kernel}):
            raise ValueError(f"no CUDA kernel attends this cache: {missing[0]}")
        self.model, self.cache, self.pages, self.most = model, cache, pages, max_new_tokens
        cache._flush()
        self.rows, device, batch = tuple(cache.rows), pages.device, len(cache.rows)
        pages.reserve(self.rows, [max_new_tokens] * batch)
        for core in pages.cores:
            core.statistics.settle()
        self.place = None if pages.places is None else pages.places.open(self.rows)
        self.width = max(len(pages.ids[row]) for row in self.rows)
        self.table = torch.zeros(batch, self.width, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        self.slots = torch.zeros(batch, dtype=torch.int64, device=device)
        self.input_ids = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        self._sent = None
        self._send()
        pages.pinned += 1
        try:
            self._capture()
        except BaseException:
            pages.pinned -= 1
            raise

    def _static_step(self):
        return Step(self.pages, self.rows, None, 1, self.slots, self.lengths, None, table=self.table)

    def _forward(self):
        size = self.pages.page_tokens
        at = self.lengths.long()
        page = self.table.gather(1, (at // size)[:, None]).long()[:, 0]
        self.slots.copy_(page * size + at % size)
        self.lengths.add_(1)
        out = self.model(input_ids=self.input_ids, position_ids=at[:, None], past_key_values=self.cache, use_cache=True)
        return out.logits[:, -1]

    def _capture(self):
        cache, pages = self.cache, self.pages
        layers = [(layer, layer.length) for layer in cache._packed()]
        slots, stored = cache.slots, cache.stored
        self.step_of_graph = pages.static = self._static_step()
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.no_grad(), torch.cuda.graph(self.graph):
                self.logits = self._forward()
        finally:
            pages.static = None
            for layer, length in layers:  # capturing has run nothing
                layer.length, layer.pending = length, None
            cache.slots, cache.stored = slots, stored
            cache.undo.starts.clear()

    def _send(self):
        """What the host knows of lengths and pages; a step that follows a step has it already."""
        pages = self.pages
        if tuple(self.cache.rows) != self.rows:
            if len(self.cache.rows) != len(self.rows):
                raise RuntimeError(f"the graph was made for a batch of {len(self.rows)}, the cache holds "
                                   f"{len(self.cache.rows)}: make another one")
            self.rows = tuple(self.cache.rows)
            self._sent = None
        if pages.places is not None and pages.places.open(self.rows) != self.place:
            raise RuntimeError("the rows of this batch have moved since the graph was made: make another one")
        state = [pages.lengths[row] for row in self.rows], pages.version
        if state == self._sent:
            return state
        pages.reserve(self.rows, [1] * len(self.rows))
        state = state[0], pages.version
        table = torch.zeros(len(self.rows), self.width, dtype=torch.int32)
        for b, row in enumerate(self.rows):
            ids = pages.ids[row]
            if len(ids) > self.width:
                raise RuntimeError(f"a row has {len(ids)} pages, the graph was made for {self.width}: make another one "
                                   "with a larger max_new_tokens")
            table[b, :len(ids)] = torch.tensor(ids, dtype=torch.int32)
        self.table.copy_(table)
        self.lengths.copy_(torch.tensor(state[0], dtype=torch.int32))
        return state

    def step(self, input_ids):
        """input_ids: [batch, 1] or [batch] on any device -> logits [batch, vocabulary], overwritten by the next step."""
        cache, pages = self.cache, self.pages
        cache._flush()
        lengths, version = self._send()
        size = pages.page_tokens
        if any(length >= len(pages.ids[row]) * size for row, length in zip(self.rows, lengths)):
            raise RuntimeError(f"the graph has no page for another token after {max(lengths)}: make one with a larger "
                               f"max_new_tokens (it was {self.most})")
        self.input_ids.copy_(input_ids.view(len(self.rows), 1))
        self.graph.replay()
        for row in self.rows:
            pages.lengths[row] += 1
            if pages.places is not None:
                pages.places.wrote(row, pages.lengths[row])
        pages.step = None
        start = cache.slots
        for layer in cache._packed():
            layer.length += 1
        cache.note(start, start + 1, None)
        self._sent = [length + 1 for length in lengths], version
        return self.logits

    def close(self):
        if self.graph is not None:
            self.graph = self.logits = None
            self.pages.pinned -= 1

