#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the types of the daemon's replies for json.c, from the schemas in docs/schema.

Usage: reply_types.py SCHEMA...

A line is {"name", "members"},: an object's name, and a key with its type for each member that it must have. json.c says how types are
written. A reply is named after its command, another object after its definition or its place.
"""
import json
import pathlib
import sys

schemas = {path.name: json.loads(path.read_text()) for path in map(pathlib.Path, sys.argv[1:])}
rows = {}


def resolve(file, schema, place):
    """The file, the definition and its name, where a reference leads; else the schema itself, and its place as a name."""
    while "$ref" in schema:
        target, _, place = schema["$ref"].partition("#/$defs/")
        file = target or file
        schema = schemas[file]["$defs"][place]
    return file, schema, place


def type_of(file, schema, place):
    """A type as json.c reads it."""
    file, schema, place = resolve(file, schema, place)
    if "anyOf" in schema:
        (some,) = [one for one in schema["anyOf"] if one != {"type": "null"}]
        return type_of(file, some, place) + "?"
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        return "$?" if None in values else "$"
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    null = "?" if "null" in types else ""
    (kind,) = [one for one in types if one != "null"]
    if kind == "object":
        add(place, file, schema)
        return "{" + place + "}" + null
    if kind == "array":
        file, items, place = resolve(file, schema["items"], place)
        if items.get("type") == "object":
            add(place, file, items)
            return "[" + place + "]" + null
        return ("[$]" if items.get("type") == "string" else "[]") + null
    return {"integer": "#", "string": "$", "boolean": "!", "number": "%"}[kind] + null


def add(name, file, schema):
    if name not in rows:
        rows[name] = ""  # an object that has itself as a member ends here
        rows[name] = " ".join(key + type_of(file, schema["properties"][key], f"{name}.{key}") for key in schema.get("required", ()))


for file, schema in schemas.items():
    if "properties" in schema:
        add(file.removesuffix(".json"), file, schema)
for name, members in rows.items():
    print(f"{{{json.dumps(name)}, {json.dumps(members)}}},")
