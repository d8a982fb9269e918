"""ModelWeights: a checkpoint's tensors under the names a model gives its parameters.

Published checkpoints keep the names and shapes of the day they were written; where transformers has since
renamed or fused parameters (a checkpoint's `experts.0.w1.weight` .. `experts.7.w3.weight` are one
three-dimensional `experts.gate_up_proj` today) its own conversion mapping says how, and is applied here one
parameter at a time, so that never more than one is held twice.
"""

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from core.models.checkpoint import Checkpoint
from core.models.errors import InvalidModelFile


class ModelWeights:
    """`take` may be called from several threads, once for each name."""

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
        """model: may be on the meta device; only names and config are read."""
        self._model = model
        self._checkpoint = checkpoint
        self._tied: dict[str, str] = dict(model.all_tied_weights_keys)
        transforms = get_model_conversion_mapping(model)
        renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
        converters = [t for t in transforms if isinstance(t, WeightConverter)]
        self._converters = {pattern: c for c in converters for pattern in c.source_patterns}
        state = model.state_dict()
        # A parameter's name -> the checkpoint's names behind it, each with the converter's pattern it matched.
        self._sources: dict[str, list[tuple[str, str | None]]] = {}
        for name in sorted(checkpoint.names(), key=dot_natural_key):
            target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
            if target not in state and name in state:
                target, pattern = name, None
            self._sources.setdefault(target, []).append((name, pattern))
        self._strange = self._sources.keys() - state.keys()

    def take(self, name: str, shape: torch.Size) -> Tensor:
        """The parameter's value, perhaps a view of a file: convert or copy before keeping it.
        InvalidModelFile if it is missing or has another shape."""
        name = self._tied.get(name, name)
        sources = self._sources.get(name, [])
        pattern = sources[0][1] if sources else None
        tensor = self._checkpoint.take(sources[0][0] if sources else name) if pattern is None else self._converted(name)
        if tensor.shape != shape:
            raise InvalidModelFile(f"{name} has shape {tuple(tensor.shape)}, the config says {tuple(shape)}")
        return tensor

    def _converted(self, name: str) -> Tensor:
        """One parameter made of several tensors."""
        sources = self._sources[name]
        converter = deepcopy(self._converters[sources[0][1]])
        for source, pattern in sources:
            converter.add_tensor(name, source, pattern, self._reader(source))
        try:
            value = converter.convert(name, model=self._model, config=self._model.config)[name]
        except (RuntimeError, KeyError, ValueError) as error:
            raise InvalidModelFile(f"the weights of {name} do not fit together: {error}") from error
        tensor: Tensor = value[0] if isinstance(value, list) else value
        return tensor

    def _reader(self, name: str) -> Callable[[], Tensor]:
        return lambda: self._checkpoint.take(name)

    def check_complete(self) -> None:
        """InvalidModelFile if the checkpoint holds weights the model has no place for.

        Tolerated: what follows from the config (stored rotary frequencies and masks), a copy of a tied weight,
        and what transformers says it leaves out (layers that predict further tokens).
        """
        tolerated = re.compile("|".join([r"rotary_emb\.inv_freq$", *self._model._keys_to_ignore_on_load_unexpected]))
        strange = sorted(name for name in self._strange - self._tied.keys() if not tolerated.search(name))
        if strange:
            raise InvalidModelFile(f"weights without a place in the model: {', '.join(strange[:5])}")
