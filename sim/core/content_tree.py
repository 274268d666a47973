"""What KV blocks contain, without hashing a block: a tree of token streams.

A prompt is a run of segments `(stream, length)`. The tokens of one stream, after one chain of segments before it, are a
`ContentNode`; the chain of a request is a path down the tree. A block belongs to the node that holds its last token,
and its content is given by that node and its place in the request's block table: two blocks have the same (node, place)
exactly when their chained hashes are equal.

    prompt   (stream 7, 40 tokens)          (stream 9, 30 tokens)      block size 16
    tokens   0 . . . . . . . . . . . . . 39 40 . . . . . . . . . . 69
    places   | 0 | 1 |  node of stream 7    | 2 | 3 |  node of stream 9 after (7, 40)
"""

from __future__ import annotations

from bisect import bisect_right

from sim.core.block_runs import BlockRun, RunShelf
from sim.core.request import Request

_NO_END = 1 << 62


class ContentNode:
    """The tokens of one stream after one chain of segments.

    Attributes:
        key: the node before it, how many tokens of that one come first, and the stream; its name in the tree.
        shelves: for each KV cache group the cached blocks whose last token is here.
        num_users: paths that end here, nodes that follow, runs of blocks on the shelves; without any it is dropped.
    """

    __slots__ = ("key", "num_users", "shelves", "tree")

    def __init__(self, tree: ContentTree, key: tuple[ContentNode | None, int, int], first_place: int) -> None:
        self.tree = tree
        self.key = key
        self.num_users = 0
        self.shelves = [RunShelf(self, first_place) for _ in range(tree.num_groups)]

    def release(self) -> None:
        """Gives up one use; a node that nobody uses is dropped, and its use of the one before with it."""
        self.num_users -= 1
        if not self.num_users:
            self.tree.drop(self)


class ContentPath:
    """The nodes of a request's tokens, in order, each with the place where the next one's blocks begin."""

    __slots__ = ("ends", "nodes")

    def __init__(self) -> None:
        self.nodes: list[ContentNode] = []
        self.ends: list[int] = []

    def node_at(self, place: int) -> tuple[ContentNode, int]:
        """Returns the node that a block belongs to, and the first place that is no longer its own."""
        index = bisect_right(self.ends, place)
        return self.nodes[index], self.ends[index]

    def find_end(self, group: int, end: int) -> int:
        """Returns the place, `end` at most, up to which all blocks are cached in a group."""
        place = 0
        for node, node_end in zip(self.nodes, self.ends, strict=True):
            stop = min(node_end, end)
            if stop > place:
                place = node.shelves[group].find_end(stop)
            if place < stop or stop == end:
                break
        return place

    def runs_between(self, group: int, place: int, end: int) -> list[BlockRun]:
        """Returns the runs to hit that cover these places, all cached."""
        runs: list[BlockRun] = []
        for node, node_end in zip(self.nodes, self.ends, strict=True):
            stop = min(node_end, end)
            if stop > place:
                runs += node.shelves[group].runs_between(place, stop)
                place = stop
            if stop == end:
                break
        return runs

    def present(self, group: int, end: int) -> bytes:
        """Returns 1 for each place before `end` whose block is cached in a group, else 0."""
        present = bytearray()
        for node, node_end in zip(self.nodes, self.ends, strict=True):
            stop = min(node_end, end)
            if stop > len(present):
                present += node.shelves[group].is_present(stop - len(present))
            if stop == end:
                break
        return bytes(present)


class ContentTree:
    """All nodes that cached blocks or present requests need.

    Args:
        block_size: tokens a block.
        num_groups: KV cache groups.
    """

    def __init__(self, block_size: int, num_groups: int) -> None:
        self.block_size = block_size
        self.num_groups = num_groups
        self._nodes: dict[tuple[ContentNode | None, int, int], ContentNode] = {}
        self._paths: dict[Request, ContentPath] = {}

    def path_of(self, request: Request) -> ContentPath:
        """Returns the path of a request's prompt and outputs; it is kept until `forget`."""
        path = self._paths.get(request)
        if path is None:
            path = self._paths[request] = self._create_path(request)
        return path

    def forget(self, request: Request) -> None:
        """Drops the path of a request that has gone or starts anew."""
        path = self._paths.pop(request, None)
        if path is not None:
            path.nodes[-1].release()

    def drop(self, node: ContentNode) -> None:
        """Takes an unused node out of the tree."""
        del self._nodes[node.key]
        node.shelves.clear()  # they know the node: without this only the garbage collector could free the two
        parent = node.key[0]
        if parent is not None:
            parent.release()

    def _create_path(self, request: Request) -> ContentPath:
        path, block_size = ContentPath(), self.block_size
        node: ContentNode | None = None
        position = length_before = 0
        for stream, length in request.prompt:
            if length:
                node = self._node(node, length_before, stream, position)
                position += length
                length_before = length
                path.nodes.append(node)
                path.ends.append(position // block_size)
        node = self._node(node, length_before, request.output_stream, position)
        node.num_users += 1
        path.nodes.append(node)
        path.ends.append(_NO_END)
        return path

    def _node(self, parent: ContentNode | None, length_before: int, stream: int, position: int) -> ContentNode:
        key = (parent, length_before, stream)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = ContentNode(self, key, position // self.block_size)
            if parent is not None:
                parent.num_users += 1
        return node
