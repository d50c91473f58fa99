"""Forms of options that tyro does not know by itself."""

import json
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from lgq.errors import LGQError

REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def _keyword_arguments(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """`--quantizer-options tau_end=0.05 score=dot`: names as in Python, values in JSON or plain text."""
    if info.type != dict[str, Any]:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="[NAME=VALUE ...]",
        instance_from_str=lambda words: dict(map(_pair, words)),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [f"{name}={json.dumps(each)}" for name, each in value.items()],
    )


def _pair(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not name or not equals:
        raise LGQError(f"{word!r} is not of the form NAME=VALUE")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


MARKERS = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff)
