"""ModelRunner: forward(layout) -> logits, over a model, its KV cache and an attention backend."""

import torch
from torch import Tensor

from core.layout import RaggedLayout
from core.models.attention import BACKENDS, IMPLEMENTATION, RaggedContext
from core.models.kv_cache import KVCache
from core.models.loader import LoadedModel


class ModelRunner:
    """Runs one model. forwards: how many forward calls it has made. One thread at a time."""

    def __init__(self, loaded: LoadedModel, num_blocks: int, block_size: int, backend: str = "sdpa") -> None:
        """ValueError for an unknown backend, or a block size the backend's kernels cannot use."""
        if backend not in BACKENDS:
            raise ValueError(f"unknown attention backend {backend!r}; known are {', '.join(BACKENDS)}")
        self._backend = BACKENDS[backend]
        if self._backend.block_size not in (None, block_size):
            raise ValueError(f"attention backend {backend!r} needs blocks of {self._backend.block_size} tokens")
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
        inputs = {
            "input_ids": self._ids(layout.token_ids()).unsqueeze(0),
            "position_ids": self._ids(layout.positions()).unsqueeze(0),
            "use_cache": False,
            "ragged": RaggedContext(attention, self.cache, self._ids(layout.slots())),
        }
        # Not inference mode, whose tensors could not be edited in place later.
        with torch.no_grad():
            if layout.num_logits == 0:
                self.loaded.model.base_model(**inputs)
                return torch.empty(0, self.vocab_size, device=self.device)
            # The whole model, so that what it does between hidden state and logits (scales, soft caps) is its own.
            rows = 0 if layout.num_logits == layout.num_rows else self._ids(layout.logit_rows())
            logits: Tensor = self.loaded.model(**inputs, logits_to_keep=rows).logits[0]
            return logits.float()

    def _ids(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)
