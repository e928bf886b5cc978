"""Protects: everyday types of pydantic as the form of an answer, with the schemas that pydantic itself writes, unedited; and answers that pydantic then reads."""
import datetime
import decimal
import pathlib
import uuid
from typing import Annotated, Literal, Optional, Union

import pydantic
import pytest
from pydantic import Field

from conftest import Appliance
from test_bad_input import post


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = Field(default=9, ge=1, le=9)


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    name: str = Field(max_length=5)


class Required(pydantic.BaseModel):
    kind: Literal["bird"]


ABOUT = {
    "HttpUrl": pydantic.HttpUrl, "AnyUrl": pydantic.AnyUrl, "FileUrl": pydantic.FileUrl, "WebsocketUrl": pydantic.WebsocketUrl, "Path": pathlib.Path,
    "FilePath": pathlib.PurePath, "bytes": bytes, "SecretStr": pydantic.SecretStr, "SecretBytes": pydantic.SecretBytes, "Base64Str": pydantic.Base64Str,
    "Base64Bytes": pydantic.Base64Bytes, "Json": pydantic.Json, "multiple": Annotated[int, Field(multiple_of=5)], "between": Annotated[int, Field(gt=10, le=40, multiple_of=3)],
    "cents": Annotated[float, Field(ge=0, multiple_of=0.01)], "positive": pydantic.PositiveInt, "date": datetime.date, "time": datetime.time, "timedelta": datetime.timedelta,
    "uuid": uuid.UUID, "decimal": decimal.Decimal, "tuple": tuple[int, str], "optional": Optional[str], "short": Annotated[str, Field(min_length=2, max_length=3)],
    "union": Annotated[Union[Cat, Dog], Field(discriminator="kind")], "union of three": Annotated[Union[Cat, Dog, Required], Field(discriminator="kind")],
    "list of unions": Annotated[list[Annotated[Union[Cat, Dog], Field(discriminator="kind")]], Field(max_length=2)], "set of choices": set[Literal["a", "b", "c"]],
    "ip": pydantic.IPvAnyAddress, "color": Annotated[str, Field(pattern="^#[0-9a-f]{6}$")],
}
UNREADABLE = {"Base64Str", "Base64Bytes", "Json", "AnyUrl", "FileUrl", "WebsocketUrl", "HttpUrl", "ip", "timedelta", "decimal"}  # the schema says less than the type


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("pydantic"), []).start().ready()
    yield a
    a.destroy()


@pytest.mark.parametrize("name", ABOUT)
def test_type(server, name):
    model = pydantic.create_model("Answer", value=(ABOUT[name], ...))
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "Give me a value."}], "temperature": 1, "seed": 1, "max_tokens": 300,
           "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": model.model_json_schema()}}}
    status, text = post(server.port, "/v1/chat/completions", ask)
    assert status == 200, (model.model_json_schema(), text)
    content = pydantic.TypeAdapter(dict).validate_json(text)["choices"][0]["message"]["content"]
    if name not in UNREADABLE:
        model.model_validate_json(content)
