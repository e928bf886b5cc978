"""Random JSON schemas and patterns, of what docs/api.md says is offered. Seeded: the same numbers make the same schemas."""
import random
import string

WORDS = ["name", "age", "city", "tags", "id", "price", "kind", "a", "ab", "abc", "é", "first name", "x-y", "$ref", "null", "A/b", "q\"q"]
FORMATS = ["date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "uri", "duration"]


def a_pattern(r, depth=0):
    """A pattern that Python's re knows too."""
    atoms = ["a", "b", "[a-c]", "[^a-y]", r"\d", r"\w", "x{2}", "é", r"\.", "[0-9a-f]", "z?", "(?:ab|c)", r"\-", " ", "_", "[A-Z]"]
    parts = []
    for _ in range(r.randint(1, 4)):
        atom = f"({a_pattern(r, depth + 1)})" if depth < 2 and r.random() < 0.25 else r.choice(atoms)
        counted = atom[-1] not in "?}"
        parts.append(atom + (r.choice(["", "", "", "*", "+", "?", "{1,3}", "{2}", "{0,2}"]) if counted else ""))
    return r.choice(["{}", "{}", "{}|{}"]).format("".join(parts), "".join(parts[::-1]))


class Maker:
    """`bounded`: nothing may go on for ever, so that a small model at a high temperature comes to an end."""

    def __init__(self, seed, bounded=False):
        self.r = random.Random(seed)
        self.defs = {}
        self.bounded = bounded

    def value(self):
        r = self.r
        return r.choice([r.randint(-50, 1000), r.choice(WORDS), True, False, None, r.randint(0, 900) / 8, "two words", [1, "x"], {"k": 1}])

    def number(self, whole):
        r, s = self.r, {"type": "integer" if whole else "number"}
        low = r.choice([None, r.randint(-2000, 2000), r.randint(-9, 9), 0, 1, r.randint(-10**6, 10**9)])
        if not whole and low is not None and r.random() < 0.5:
            low = low / r.choice([2, 4, 10, 100, 3])
        if low is not None:
            s[r.choice(["minimum", "minimum", "exclusiveMinimum"])] = low
        if r.random() < 0.5:
            span = r.choice([1, 2, 10, 150, 99999])
            s[r.choice(["maximum", "maximum", "exclusiveMaximum"])] = (low or 0) + span + (r.random() if not whole else 1)
        return s

    def text(self):
        r, s = self.r, {"type": "string"}
        how = r.random()
        if how < 0.3:
            low = r.randint(0, 4)
            s["minLength"] = low
            if self.bounded or r.random() < 0.7:
                s["maxLength"] = low + r.randint(0, 12)
        elif how < 0.5 and self.bounded:
            s["pattern"] = "^(?:{})$".format(a_pattern(r).replace("*", "{0,3}").replace("+", "{1,3}"))
        elif how < 0.5:
            s["pattern"] = r.choice(["^{}$", "^(?:{})$", "{}"]).format(a_pattern(r)) if r.random() < 0.8 else a_pattern(r)
        elif how < 0.7:
            s["format"] = r.choice(FORMATS)
        else:
            s["maxLength"] = r.randint(0, 30)
        return s

    def array(self, depth):
        r, s = self.r, {"type": "array"}
        if r.random() < 0.25:
            s["prefixItems"] = [self.schema(depth + 1) for _ in range(r.randint(1, 3))]
            s["items"] = r.choice([False, self.schema(depth + 1)])
            if r.random() < 0.5:
                s["minItems"] = r.randint(0, len(s["prefixItems"]))
        else:
            s["items"] = self.schema(depth + 1)
            low = r.randint(0, 3)
            if r.random() < 0.5:
                s["minItems"] = low
        if self.bounded or r.random() < 0.8:
            s["maxItems"] = s.get("minItems", 0) + r.randint(0, 4)
        return s

    def object(self, depth):
        r, s = self.r, {"type": "object"}
        names = r.sample(WORDS, r.randint(0, 4))
        if names:
            s["properties"] = {n: self.schema(depth + 1) for n in names}
            s["required"] = [n for n in names if r.random() < 0.6]
        if r.random() < 0.4:
            s["additionalProperties"] = False if self.bounded else r.choice([False, False, True, self.schema(depth + 2)])
        elif not names:
            s["maxProperties"] = r.randint(0, 3)
        return s

    def choice(self, depth):
        r, how = self.r, self.r.random()
        if how < 0.4:
            return {"anyOf": [self.schema(depth + 1) for _ in range(r.randint(1, 3))]}
        if how < 0.6:
            return {"oneOf": [self.number(True), self.text(), {"type": "boolean"}][:r.randint(1, 3)]}
        if how < 0.75:
            a, b = r.sample(WORDS, 2)
            return {"oneOf": [{"type": "object", "properties": {"t": {"const": a}, "v": self.schema(depth + 2)}, "required": ["t"]},
                              {"type": "object", "properties": {"t": {"const": b}, "w": self.schema(depth + 2)}, "required": ["t"]}]}
        if how < 0.9:
            return {"allOf": [{"type": "object", "properties": {"a": self.schema(depth + 2)}, "required": ["a"]},
                              {"properties": {"b": self.schema(depth + 2)}, "required": r.choice([[], ["b"]])}]}
        low = r.randint(-5, 5)
        return {"type": "integer", "anyOf": [{"minimum": low, "maximum": low + 3}, {"minimum": 90}], "maximum": 99}

    def condition(self, depth):
        """What is said with other keywords: not, if, dependentRequired, patternProperties, propertyNames, uniqueItems."""
        r, how = self.r, self.r.random()
        a, b, c = r.sample(WORDS, 3)
        if how < 0.15:
            return {"type": r.choice(["integer", "number", "string"]), "not": {"enum": [self.value() for _ in range(3)] + [0, 1, "a", ""]}}
        if how < 0.25:
            return {"not": r.choice([{"type": ["object", "array", "number"]}, {"anyOf": [{"type": "string"}, {"type": "object"}, {"maximum": 3}]},
                                     {"type": "string", "minLength": 3}, {"enum": [1, "a", None]}]),
                    "type": ["boolean", "null", "integer", "string"]}
        if how < 0.45:
            kind = {"enum": ["one", "two", "three"]}
            return {"type": "object", "properties": {a: kind, b: self.schema(depth + 2), c: {"type": "integer"}},
                    "required": [a] if r.random() < 0.7 else [], "if": {"properties": {a: {"const": "one"}}, "required": r.choice([[], [a]])},
                    "then": {"required": [b]}, **({"else": {"properties": {c: {"minimum": 5}}}} if r.random() < 0.6 else {})}
        if how < 0.55:
            return {"type": "object", "properties": {a: {"type": "null"}, b: {"type": "boolean"}, c: self.schema(depth + 2)},
                    "dependentRequired": {a: [b], **({c: [a]} if r.random() < 0.5 else {})}, "not": {"required": [c]} if r.random() < 0.3 else False}
        if how < 0.65:
            return {"type": "object", "properties": {a: {"type": "integer"}, b: {"type": "null"}},
                    "dependentSchemas": {b: {"properties": {a: {"maximum": 9}}, "required": [a]}}}
        if how < 0.75:
            return {"type": "object", "patternProperties": {"^p[0-9]{1,2}$": self.schema(depth + 2), "^q_": {"type": "boolean"}},
                    "properties": {"name": {"type": "null"}}, "additionalProperties": r.choice([True, False]), "required": r.choice([[], ["name"]])}
        if how < 0.85:
            return {"type": "object", "propertyNames": r.choice([{"enum": ["x", "y", "z"]}, {"pattern": "^[a-z]{1,4}$"}, {"maxLength": 5}]),
                    "additionalProperties": self.schema(depth + 2)}
        values = [self.value() for _ in range(r.randint(1, 9))]
        return {"type": "array", "uniqueItems": True, "items": r.choice([{"enum": values}, {"type": "boolean"}, {"const": 1}]),
                "maxItems": r.randint(1, 5)}

    def reference(self, depth):
        name = self.r.choice(["node", "item"])
        if name not in self.defs:
            self.defs[name] = True  # so that it may refer to itself
            inner = self.schema(depth + 2)
            self.defs[name] = {"type": "object", "properties": {"v": inner, "next": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]}},
                               "required": ["v"], "additionalProperties": False}
        return {"$ref": f"#/$defs/{name}"}

    def schema(self, depth=0):
        r = self.r
        if depth > 3:
            return r.choice([{"type": "boolean"}, {"type": "null"}, self.number(True), self.text()])
        how = r.random()
        if how < 0.12:
            return {"enum": [self.value() for _ in range(r.randint(1, 5))]}
        if how < 0.16:
            return {"const": self.value()}
        if how < 0.3:
            return self.number(r.random() < 0.6)
        if how < 0.45:
            return self.text()
        if how < 0.5:
            return {"type": r.sample(["null", "boolean", "integer", "string"], 2), "maxLength": 8}
        if how < 0.65:
            return self.array(depth)
        if how < 0.85:
            return self.object(depth)
        if how < 0.91:
            return self.choice(depth)
        if how < 0.95:
            return self.condition(depth)
        return self.reference(depth)

    def make(self):
        s = self.schema()
        if self.defs:
            s = dict(s, **{"$defs": self.defs})
        return s


def schema(seed):
    return Maker(seed).make()


def object_schema(seed, bounded=True):
    """One whose root is an object with a few properties, as people ask for."""
    m = Maker(seed, bounded)
    names = m.r.sample([w for w in WORDS if w[0] in string.ascii_letters], m.r.randint(1, 4))
    s = {"type": "object", "properties": {n: m.schema(1) for n in names}, "required": names, "additionalProperties": False}
    return dict(s, **{"$defs": m.defs}) if m.defs else s
