"""What every section of the settings shares: unknown keys are refused, and an error between keys names them itself."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


def refuse_booleans(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """For every field: true is no number, though Python counts it as 1."""
    if isinstance(value, bool) and {int, float} & _kinds(cls.model_fields[str(info.field_name)].annotation):
        raise ValueError("should be a number")
    return value


def _kinds(annotation: Any) -> set[Any]:
    return {annotation}.union(*(_kinds(one) for one in get_args(annotation) if isinstance(one, type)))


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    _no_booleans = field_validator("*", mode="before")(classmethod(refuse_booleans))


def conflict(message: str) -> PydanticCustomError:
    """An error between keys, which the message names itself."""
    return PydanticCustomError("conflict", "{message}", {"message": message})
