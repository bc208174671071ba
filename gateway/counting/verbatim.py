"""Whether a chat template puts a message's content into the prompt as it stands, whatever it says.

Owns the proof, over the template's own syntax tree: content is written, joined to other text, trimmed, or asked whether
it is there, and nothing else is done with it. Then what is around the content depends on the messages' roles alone. A
template that does anything this module does not know is none; nothing is rendered here.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

CONTENT = "content"
_METHODS_OF_OBJECTS = frozenset(dir(dict))
# They tell a text from another kind of value, never one text from another.
_TESTS_OF_KIND = frozenset(
    {"defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean"}
)
# None of them marks a text as safe, beside which other text would be escaped, and none draws lots.
_FILTERS = frozenset(
    {
        "abs", "capitalize", "count", "d", "default", "dictsort", "first", "indent", "int", "items", "join", "last",
        "length", "list", "lower", "map", "reject", "rejectattr", "replace", "round", "select", "selectattr", "sort",
        "string", "title", "tojson", "trim", "unique", "upper",
    }
)  # fmt: skip
# What a loop says of itself that holds no message.
_LOOP_MEMBERS = frozenset({"index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0"})
# They give the hour, chance, or what a block wrote.
_REFUSED_NAMES = frozenset({"strftime_now", "lipsum", "self"})
_REFUSED = (
    *(nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block),
    *(nodes.EvalContextModifier, nodes.ScopedEvalContextModifier),
)
# What they hold is text to the template before it is written, so that it may be changed.
_CAPTURING = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)


def keeps_content_verbatim(tree: nodes.Template) -> bool:
    """Whether every content that is not blank comes out as it is, but for space at its ends, and decides nothing."""
    return (
        next(tree.find_all(_REFUSED), None) is None
        and all(name.name not in _REFUSED_NAMES for name in tree.find_all(nodes.Name))
        and all(found.name in _FILTERS for found in tree.find_all(nodes.Filter))
        and _Proof(tree).holds()
    )


class _Proof:
    """messages: names that the template gives to one message. texts: those it gives to text that holds content."""

    def __init__(self, tree: nodes.Template) -> None:
        self._tree = tree
        self._messages = {
            loop.target.name
            for loop in tree.find_all(nodes.For)
            if _is_messages(loop.iter) and isinstance(loop.target, nodes.Name)
        }
        self._texts: set[str] = set()

    def holds(self) -> bool:
        assignments = list(self._tree.find_all(nodes.Assign))
        known = -1
        while known != len(self._texts):  # an alias of an alias counts
            known = len(self._texts)
            for assignment in assignments:
                if isinstance(assignment.target, nodes.Name) and self._is_text(assignment.node):
                    self._texts.add(assignment.target.name)
        return not (self._texts & (self._messages | {"messages"})) and self._is_sound(self._tree, is_captured=False)

    def _is_content(self, node: nodes.Node) -> bool:
        return self._member(node) == CONTENT or (isinstance(node, nodes.Name) and node.name in self._texts)

    def _member(self, node: nodes.Node) -> str | None:
        """The member of one message that the expression reads."""
        match node:
            case (
                nodes.Getattr(node=holder, attr=str(name))
                | nodes.Getitem(node=holder, arg=nodes.Const(value=str(name)))
            ):
                return name if self._is_message(holder) else None
            case _:
                return None

    def _is_message(self, node: nodes.Node) -> bool:
        match node:
            case nodes.Name(name=name):
                return name in self._messages
            case nodes.Getitem(node=holder, arg=arg):
                return _is_messages(holder) and not isinstance(arg, nodes.Slice)
            case _:
                return False

    def _is_text(self, node: nodes.Node) -> bool:
        """Whether content is part of what the expression gives."""
        match node:
            case nodes.Add(left=left, right=right):
                return self._is_text(left) or self._is_text(right)
            case nodes.Concat(nodes=joined):
                return any(map(self._is_text, joined))
            case nodes.CondExpr(expr1=one, expr2=other):
                return self._is_text(one) or (other is not None and self._is_text(other))
            case nodes.Filter(node=inner, name="trim", args=[], kwargs=[], dyn_args=None, dyn_kwargs=None):
                return inner is not None and self._is_text(inner)
            case _:
                return self._is_content(node)

    def _is_sound(self, node: nodes.Node, *, is_captured: bool) -> bool:  # noqa: PLR0911 - one a kind of node
        """Whether nothing inside the node does more with content, or with messages, than is known."""
        match node:
            case nodes.Output(nodes=written):
                return all(self._is_written(each, is_captured) for each in written)
            case nodes.Assign(target=nodes.Name(), node=value):
                return self._is_written(value, is_captured)
            case nodes.If(test=test):
                rest = [*node.body, *node.elif_, *node.else_]
                return self._is_asked(test) and all(self._is_sound(each, is_captured=is_captured) for each in rest)
            case nodes.For(iter=iterable, test=None) if _is_messages(iterable) and isinstance(node.target, nodes.Name):
                rest = [*_slice_of(iterable), *node.body, *node.else_]
                return all(self._is_sound(each, is_captured=is_captured) for each in rest)
            case nodes.Filter(node=nodes.Name(name="messages"), name="length" | "count"):
                return True
            case nodes.Test(node=tested, name=name, args=[]) if name in _TESTS_OF_KIND and self._is_content(tested):
                return self._is_indexed_soundly(tested)
            case nodes.Getattr(node=nodes.Name(name="loop"), attr=attribute):
                return attribute in _LOOP_MEMBERS
            case _:
                return self._is_unwritten(node, is_captured)

    def _is_unwritten(self, node: nodes.Node, is_captured: bool) -> bool:
        """Whether an expression or a block of no kind that is known holds neither content nor messages."""
        member = self._member(node)
        if member is not None:
            return member != CONTENT and member not in _METHODS_OF_OBJECTS and self._is_indexed_soundly(node)
        if isinstance(node, nodes.Name):
            return node.name not in {"messages", "loop"} | self._messages | self._texts
        within = is_captured or isinstance(node, _CAPTURING)
        return all(self._is_sound(child, is_captured=within) for child in node.iter_child_nodes())

    def _is_written(self, node: nodes.Node, is_captured: bool) -> bool:  # noqa: PLR0911 - one a kind of node
        """Whether an expression that is written, or kept under a name, is sound."""
        if isinstance(node, nodes.TemplateData):
            return True
        if not self._is_text(node):
            return self._is_sound(node, is_captured=is_captured)
        if is_captured:
            return False
        match node:
            case nodes.Add(left=left, right=right):
                return self._is_written(left, is_captured) and self._is_written(right, is_captured)
            case nodes.Concat(nodes=joined):
                return all(self._is_written(each, is_captured) for each in joined)
            case nodes.CondExpr(test=test, expr1=one, expr2=other):
                branches = [one] if other is None else [one, other]
                return self._is_asked(test) and all(self._is_written(each, is_captured) for each in branches)
            case nodes.Filter(node=inner):
                return inner is not None and self._is_written(inner, is_captured)
            case _:
                return self._is_indexed_soundly(node)

    def _is_asked(self, node: nodes.Node) -> bool:
        """Whether a condition is sound: content may be asked whether it is there."""
        match node:
            case nodes.Not(node=inner):
                return self._is_asked(inner)
            case nodes.And(left=left, right=right) | nodes.Or(left=left, right=right):
                return self._is_asked(left) and self._is_asked(right)
            case _:
                is_content = self._is_content(node)
                return self._is_indexed_soundly(node) if is_content else self._is_sound(node, is_captured=False)

    def _is_indexed_soundly(self, node: nodes.Node) -> bool:
        """Whether what says which message is read is itself sound."""
        match node:
            case nodes.Getattr(node=nodes.Getitem(arg=index)) | nodes.Getitem(node=nodes.Getitem(arg=index)):
                return self._is_sound(index, is_captured=False)
            case _:
                return True


def _is_messages(node: nodes.Node) -> bool:
    """All the messages, or those from one place to another."""
    match node:
        case nodes.Name(name="messages"):
            return True
        case nodes.Getitem(node=nodes.Name(name="messages"), arg=nodes.Slice()):
            return True
        case _:
            return False


def _slice_of(node: nodes.Node) -> Iterator[nodes.Node]:
    if isinstance(node, nodes.Getitem):
        yield node.arg
