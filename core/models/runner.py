"""ModelRunner: forward(layout) -> logits, over a model, its KV cache and an attention backend."""

from itertools import chain
from typing import Any

import torch
from torch import Tensor

from core.device_copy import to_device
from core.layout import RaggedLayout
from core.models.attention import (
    IMPLEMENTATION,
    AttentionBackend,
    BackendSpec,
    RaggedContext,
    backend_named,
    plain_backend,
)
from core.models.graphs import RecordedForward, Recorder
from core.models.kv_cache import KVCache, kv_shape
from core.models.loader import LoadedModel
from core.models.uniform_batch import UniformBatch


class ModelRunner:
    """Runs one model. backend: of its attention. forwards: how many forward calls it has made. One thread at a time."""

    def __init__(
        self,
        loaded: LoadedModel,
        num_blocks: int,
        block_size: int,
        backend: str | BackendSpec | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """backend: a name in BACKENDS, or the specification of another one; None for one that takes blocks of any size
        and, with a recorder, can be recorded. recorder: what records forwards of small batches, to replay them; None to
        run them all. ValueError for an unknown backend, one that cannot serve this model or be recorded, or a block
        size its kernels cannot use."""
        if backend is None:
            backend = plain_backend(loaded.device, loaded.dtype, kv_shape(loaded.config)[1], recorder is not None)
        self.backend = backend if isinstance(backend, BackendSpec) else backend_named(backend)
        self.backend.check(loaded.device, loaded.dtype, kv_shape(loaded.config)[1])
        multiple = self.backend.block_size or 1
        if block_size % multiple:
            raise ValueError(f"attention backend {self.backend.name} needs blocks of a multiple of {multiple} tokens")
        self.loaded = loaded
        self.vocab_size = loaded.vocab_size
        self.block_size = block_size
        self.device = loaded.device
        self.forwards = 0
        # With a recorder one block more, which padding rows may write and no sequence ever gets.
        blocks = num_blocks + (recorder is not None)
        finite = self.backend.reads_beyond and loaded.device.type == "cpu"
        self._num_slots = blocks * block_size
        self.cache = KVCache(loaded.config, blocks, block_size, loaded.dtype, loaded.device, finite)
        self.recorded = None if recorder is None else self._recorded(recorder, num_blocks)
        loaded.model.set_attn_implementation(IMPLEMENTATION)

    def forward(self, layout: RaggedLayout) -> Tensor:
        """Run all rows, writing their KV. float32 [layout.num_logits, vocab], in the order of logit_rows;
        a plain tensor that may be edited in place. With no logit rows the output layer is not run."""
        if layout.block_size != self.block_size:
            raise ValueError(f"the layout has blocks of {layout.block_size} tokens, the cache of {self.block_size}")
        self.forwards += 1
        if self.recorded is not None and (logits := self.recorded.forward(layout)) is not None:
            return logits
        attention = self.backend.prepare(layout, self.cache.dtype, self.device)
        token_ids, positions, slots, logit_rows = self._index_tensors(layout)
        inputs = self._inputs(token_ids, positions, attention, slots)
        if layout.num_logits == 0:
            self._hidden(inputs)
            return torch.empty(0, self.vocab_size, device=self.device)
        logits = self._logits(inputs, 0 if layout.num_logits == layout.num_rows else logit_rows)
        # Copied outside of inference mode, whose tensors could not be edited in place.
        return logits.to(torch.float32, copy=True)

    @property
    def records(self) -> int:
        """Forwards so far that were recorded as they ran, which takes several times as long."""
        return 0 if self.recorded is None else self.recorded.records

    def _recorded(self, recorder: Recorder, scratch_block: int) -> RecordedForward:
        """ValueError if the attention backend cannot be recorded."""
        prepare = self.backend.uniform
        if prepare is None:
            raise ValueError(f"attention backend {self.backend.name} cannot be recorded")

        @torch.inference_mode()
        def forward(token_ids: Tensor, slots: Tensor, batch: UniformBatch) -> Tensor:
            attention = prepare(batch, self.cache.dtype)
            return self._logits(self._inputs(token_ids, batch.positions.flatten(), attention, slots), 0)

        sizes = (self.vocab_size, self.block_size, scratch_block)
        return RecordedForward(forward, recorder, *sizes, self.device, self.backend.uniform_keys)

    def _inputs(
        self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend, slots: Tensor
    ) -> dict[str, Any]:
        """Of the model: a batch of one, of all rows."""
        return {
            "input_ids": token_ids.unsqueeze(0),
            "position_ids": positions.unsqueeze(0),
            "use_cache": False,
            "ragged": RaggedContext(attention, self.cache, slots),
        }

    @torch.inference_mode()
    def _hidden(self, inputs: dict[str, Any]) -> None:
        """Fill the KV cache and no more."""
        self.loaded.model.base_model(**inputs)

    @torch.inference_mode()
    def _logits(self, inputs: dict[str, Any], rows: Tensor | int) -> Tensor:
        """By the whole model, so that what it does between hidden state and logits (scales, soft caps) is its own.
        rows: which of them (int64), or 0 for all. [rows, vocab]"""
        logits: Tensor = self.loaded.model(**inputs, logits_to_keep=rows).logits[0]
        return logits

    def wait(self) -> None:
        """Until the device has done all it was given: on CUDA a forward returns before it has run."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _index_tensors(self, layout: RaggedLayout) -> tuple[Tensor, ...]:
        """Token ids, positions, slots and logit rows, int64 on the device, in one copy to it."""
        slots = layout.slots()
        if not 0 <= min(slots) <= max(slots) < self._num_slots:  # kernels take them as they are
            raise ValueError(f"slots {min(slots)} to {max(slots)}, the cache has {self._num_slots}")
        lists = [layout.token_ids(), layout.positions(), slots, layout.logit_rows()]
        packed = to_device(list(chain(*lists)), torch.int64, self.device)
        parts: tuple[Tensor, ...] = packed.split([len(values) for values in lists])  # type: ignore[no-untyped-call]
        return parts
