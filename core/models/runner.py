"""ModelRunner: forward(layout) -> logits, over a model, its KV cache and an attention backend."""

from itertools import chain

import torch
from torch import Tensor

from core.device_copy import to_device
from core.layout import RaggedLayout
from core.models.attention import IMPLEMENTATION, BackendSpec, RaggedContext, backend_named
from core.models.kv_cache import KVCache, kv_shape
from core.models.loader import LoadedModel


class ModelRunner:
    """Runs one model. forwards: how many forward calls it has made. One thread at a time."""

    def __init__(
        self, loaded: LoadedModel, num_blocks: int, block_size: int, backend: str | BackendSpec = "sdpa"
    ) -> None:
        """backend: a name in BACKENDS, or the specification of another one. ValueError for an unknown one, one that
        cannot serve this model, or a block size its kernels cannot use."""
        self._backend = backend if isinstance(backend, BackendSpec) else backend_named(backend)
        self._backend.check(loaded.device, loaded.dtype, kv_shape(loaded.config)[1])
        multiple = self._backend.block_size or 1
        if block_size % multiple:
            raise ValueError(f"attention backend {self._backend.name} needs blocks of a multiple of {multiple} tokens")
        self.loaded = loaded
        self.vocab_size = loaded.vocab_size
        self.block_size = block_size
        self.device = loaded.device
        self.forwards = 0
        self.cache = KVCache(loaded.config, num_blocks, block_size, loaded.dtype, loaded.device)
        loaded.model.set_attn_implementation(IMPLEMENTATION)

    def forward(self, layout: RaggedLayout) -> Tensor:
        """Run all rows, writing their KV. float32 [layout.num_logits, vocab], in the order of logit_rows;
        a plain tensor that may be edited in place. With no logit rows the output layer is not run."""
        if layout.block_size != self.block_size:
            raise ValueError(f"the layout has blocks of {layout.block_size} tokens, the cache of {self.block_size}")
        self.forwards += 1
        attention = self._backend.prepare(layout, self.cache.dtype, self.device)
        token_ids, positions, slots, logit_rows = self._index_tensors(layout)
        inputs = {
            "input_ids": token_ids.unsqueeze(0),
            "position_ids": positions.unsqueeze(0),
            "use_cache": False,
            "ragged": RaggedContext(attention, self.cache, slots),
        }
        # Not inference mode, whose tensors could not be edited in place later.
        with torch.no_grad():
            if layout.num_logits == 0:
                self.loaded.model.base_model(**inputs)
                return torch.empty(0, self.vocab_size, device=self.device)
            # The whole model, so that what it does between hidden state and logits (scales, soft caps) is its own.
            rows = 0 if layout.num_logits == layout.num_rows else logit_rows
            logits: Tensor = self.loaded.model(**inputs, logits_to_keep=rows).logits[0]
            return logits.float()

    def wait(self) -> None:
        """Until the device has done all it was given: on CUDA a forward returns before it has run."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _index_tensors(self, layout: RaggedLayout) -> tuple[Tensor, ...]:
        """Token ids, positions, slots and logit rows, int64 on the device, in one copy to it."""
        lists = [layout.token_ids(), layout.positions(), layout.slots(), layout.logit_rows()]
        packed = to_device(list(chain(*lists)), torch.int64, self.device)
        return packed.split([len(values) for values in lists])
