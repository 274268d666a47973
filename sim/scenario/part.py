"""The base of every piece of a scenario, and the mapping with one key that names a variant (`{lognormal: {…}}`)."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Part(BaseModel):
    """A frozen piece of a scenario that refuses unknown keys and does not convert types (text "64" is not 64)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        populate_by_name=True,
        allow_inf_nan=False,
        defer_build=True,  # only the whole scenario is ever validated: a sixth off the start-up time
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_means_default(cls, data: Any) -> Any:
        """Drops known keys without a value (`flags:` with every flag commented out): they take their default."""
        if isinstance(data, dict) and None in data.values():
            known = known_keys(cls)
            return {key: value for key, value in data.items() if value is not None or key not in known}
        return data


class Named(Part):
    """A piece written as a mapping with one key, its kind: `{uniform: {low: 1, high: 2}}`.

    In Python it is the piece itself, `Uniform(low=1, high=2)`. A union of such pieces is told apart by `kind_of`.
    """

    kind: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _unwrap(cls, data: Any) -> Any:
        if isinstance(data, dict) and cls.kind in data:
            if len(data) > 1:
                raise ValueError(f"takes one kind; got {', '.join(map(str, data))}")
            inner = data[cls.kind]
            if not isinstance(inner, dict | cls):
                raise ValueError(f"{cls.kind} takes a mapping of {', '.join(cls.model_fields)}; got {inner!r}")
            return inner
        return data

    @model_serializer(mode="wrap")
    def _wrap(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {self.kind: handler(self)}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner = handler.resolve_ref_schema(handler(_without_serializer(core_schema)))
        return {
            "type": "object",
            "description": inner.get("description", ""),
            "properties": {cls.kind: {key: value for key, value in inner.items() if key != "title"}},
            "required": [cls.kind],
            "additionalProperties": False,
        }


def _without_serializer(schema: CoreSchema) -> CoreSchema:
    """Drops the wrapping serializer: in its presence pydantic describes the function's return type, not the fields."""
    return {key: value for key, value in schema.items() if key != "serialization"}


def known_keys(cls: type[Part]) -> list[str]:
    """Returns the keys of a piece as a file writes them."""
    return [field.alias or name for name, field in cls.model_fields.items()]


def kind_of(value: Any) -> str | None:
    """Returns the kind of a `Named` piece or of its mapping; None when the value is neither.

    A mapping with several keys has the kind of its first key, so that the error names the key that should go.
    """
    if isinstance(value, Named):
        return value.kind
    if isinstance(value, dict) and value:
        return str(next(iter(value)))
    return None
