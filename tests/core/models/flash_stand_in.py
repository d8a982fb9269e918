"""flash_attn_varlen_func as flash-attn 2.8 documents it, in the obvious slow way, for machines without CUDA.

The same parameters, defaults and demands on its arguments (dtypes, shapes, page size, contiguity), so that a call
the real function would refuse fails here too. Keys and values are read row by row through the block table.
"""

from itertools import pairwise

import torch
from torch import Tensor


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """q [rows, heads, dim]; k, v [blocks, page, kv heads, dim]; returns q's shape. Paged inference only."""
    assert dropout_p == 0.0
    assert alibi_slopes is None
    assert not return_attn_probs
    assert block_table is not None
    _check(q, k, v, cu_seqlens_q, cu_seqlens_k, block_table)
    row_starts, key_starts = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    row_counts = [end - start for start, end in pairwise(row_starts)]
    key_counts = [end - start for start, end in pairwise(key_starts)]
    assert row_starts[0] == key_starts[0] == 0
    assert row_starts[-1] == len(q)
    # The kernel's grid and splits are sized by them; beyond a segment's own end they only cost time.
    assert max_seqlen_q >= max(row_counts)
    assert max_seqlen_k >= max(key_counts)
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    left, right = window_size
    if causal:
        right = 0
    group, page = q.shape[1] // k.shape[2], k.shape[1]
    out = torch.zeros_like(q)
    for segment, (rows, count) in enumerate(zip(row_counts, key_counts, strict=True)):
        for row in range(rows):
            own = row + count - rows  # aligned to the bottom right
            first = 0 if left < 0 else max(0, own - left)
            last = count - 1 if right < 0 else min(count - 1, own + right)
            slots = [(int(block_table[segment, p // page]), p % page) for p in range(first, last + 1)]
            if not slots:
                continue
            blocks, offsets = zip(*slots, strict=True)
            keys = k[list(blocks), list(offsets)].double().repeat_interleave(group, dim=1)
            values = v[list(blocks), list(offsets)].double().repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,nhd->hn", q[row_starts[segment] + row].double(), keys) * scale
            if softcap > 0.0:
                scores = softcap * torch.tanh(scores / softcap)
            out[row_starts[segment] + row] = torch.einsum("hn,nhd->hd", scores.softmax(-1), values).to(q.dtype)
    return out


def _check(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, block_table: Tensor) -> None:
    """What the extension checks before it launches anything."""
    assert q.dtype in (torch.float16, torch.bfloat16), "FlashAttention only supports fp16 and bf16"
    assert k.dtype == v.dtype == q.dtype
    for index in (cu_seqlens_q, cu_seqlens_k, block_table):
        assert index.dtype == torch.int32
        assert index.device == q.device
    assert cu_seqlens_q.is_contiguous()
    assert cu_seqlens_k.is_contiguous()
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == block_table.stride(-1) == 1
    blocks, page, kv_heads, dim = k.shape
    assert page % 256 == 0, "paged KV needs pages of a multiple of 256"
    assert v.shape == k.shape
    assert q.shape[2] == dim
    assert dim <= 256
    assert dim % 8 == 0, "the wrapper would pad, hence copy, the whole cache"
    assert q.shape[1] % kv_heads == 0
    segments = cu_seqlens_q.numel() - 1
    assert segments > 0
    assert cu_seqlens_k.shape == (segments + 1,)
    assert block_table.dim() == 2
    assert len(block_table) == segments
    assert int(block_table.min()) >= 0
    assert int(block_table.max()) < blocks
