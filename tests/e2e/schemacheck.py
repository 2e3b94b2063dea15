"""A small strict JSON Schema validator. It knows only the keywords that our document uses, and rejects fields that are not described, so
that every addition to the API has to be added to the document."""
import re

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
IGNORED = {"description", "examples"}


class Wrong(AssertionError):
    pass


def is_type(value, name):
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


class Checker:
    def __init__(self, schemas):
        self.schemas = schemas

    def check(self, value, schema, at="$"):
        for keyword, wanted in schema.items():
            if keyword in IGNORED:
                continue
            test = getattr(self, "_" + keyword.lstrip("$"), None)
            if not test:
                raise Wrong(f"{at}: the checker does not know the keyword {keyword!r}")
            test(value, wanted, schema, at)

    def fail(self, at, value, wanted):
        raise Wrong(f"{at}: {value!r} is not {wanted!r}")

    def _ref(self, value, name, _, at):
        self.check(value, self.schemas[name.rsplit("/", 1)[1]], at)

    def _type(self, value, names, _, at):
        names = names if isinstance(names, list) else [names]
        if not any(is_type(value, name) for name in names):
            self.fail(at, value, names)

    def _enum(self, value, choices, _, at):
        if value not in choices:
            self.fail(at, value, choices)

    def _const(self, value, wanted, _, at):
        if value != wanted or type(value) is not type(wanted):
            self.fail(at, value, wanted)

    def _required(self, value, names, _, at):
        for name in names:
            if isinstance(value, dict) and name not in value:
                raise Wrong(f"{at}: {name} is missing in {value!r}")

    def _properties(self, value, known, schema, at):
        if not isinstance(value, dict):
            return
        for name, item in value.items():
            if name in known:
                self.check(item, known[name], f"{at}.{name}")
            elif "additionalProperties" not in schema:
                raise Wrong(f"{at}: {name} is not described")

    def _additionalProperties(self, value, wanted, schema, at):
        if not isinstance(value, dict) or wanted is True:
            return
        for name, item in value.items():
            if name not in schema.get("properties", {}):
                self.check(item, wanted, f"{at}.{name}")

    def _items(self, value, wanted, _, at):
        if isinstance(value, list):
            for number, item in enumerate(value):
                self.check(item, wanted, f"{at}[{number}]")

    def _anyOf(self, value, choices, _, at):
        reasons = []
        for choice in choices:
            try:
                return self.check(value, choice, at)
            except Wrong as why:
                reasons.append(str(why))
        raise Wrong(f"{at}: none fits: " + "; ".join(reasons))

    def _minItems(self, value, least, _, at):
        if isinstance(value, list) and len(value) < least:
            self.fail(at, value, f"at least {least}")

    def _minimum(self, value, least, _, at):
        if is_type(value, "number") and value < least:
            self.fail(at, value, f">= {least}")

    def _maximum(self, value, most, _, at):
        if is_type(value, "number") and value > most:
            self.fail(at, value, f"<= {most}")

    def _maxLength(self, value, most, _, at):
        if isinstance(value, str) and len(value) > most:
            self.fail(at, value, f"at most {most} long")

    def _pattern(self, value, pattern, _, at):
        if isinstance(value, str) and not re.search(pattern, value):
            self.fail(at, value, pattern)
