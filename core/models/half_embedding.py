"""HalfEmbedding: an embedding table in half precision, whatever else an embedding does kept as it is."""

from inspect import signature

import torch
from torch import Tensor, nn
from torch.nn import functional


class HalfEmbedding(nn.Module):
    """A float16 table whose rows are cast to float32 when looked up; ids [...] -> [..., dim].

    lookup: the embedding it stands in for; it loses its own table. If that does more than look up (Gemma scales
    its rows), its own forward runs over a table of just the rows asked for.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, lookup: nn.Embedding | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight.to(torch.float16, copy=True), persistent=False)
        self._lookup = None if lookup is None or type(lookup) is nn.Embedding else lookup
        if self._lookup is not None:
            self._lookup.weight = nn.Parameter(torch.empty(0, weight.shape[1]), requires_grad=False)
            self._lookup.padding_idx = None  # means something to gradients alone, but is checked against the table

    def forward(self, ids: Tensor) -> Tensor:
        rows = functional.embedding(ids, self.weight).float()
        if self._lookup is None:
            return rows
        table = {"weight": rows.view(-1, rows.shape[-1])}
        places = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
        scaled: Tensor = torch.func.functional_call(self._lookup, table, (places,))
        return scaled


def halvable(module: nn.Module) -> bool:
    """Whether HalfEmbedding can stand in for it: an embedding looked up by ids alone (OPT's positions are not)."""
    return isinstance(module, nn.Embedding) and len(signature(type(module).forward).parameters) == 2
