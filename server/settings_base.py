"""What every section of the settings shares: unknown keys are refused, and an error between keys names them itself."""

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def conflict(message: str) -> PydanticCustomError:
    """An error between keys, which the message names itself."""
    return PydanticCustomError("conflict", "{message}", {"message": message})
