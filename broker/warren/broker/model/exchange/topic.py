"""Topic matching by a trie of words. The cost of a publish depends on its words and matches, not on the bindings.

`*` stands for exactly one word, `#` for none or more (https://www.rabbitmq.com/tutorials/tutorial-five-python).
"""

from __future__ import annotations


class TrieNode:
    """Node of the trie: the destinations whose binding key ends here, and the words that may follow."""

    def __init__(self) -> None:
        self.any = False
        """True if the node was reached by the word `#`: a match may stay at this node for any number of words."""
        self.children: dict[bytes, TrieNode] = {}
        self.ends: dict[object, int] = {}


class TopicTrie:
    """Binding keys of a topic exchange with their destinations.

    A destination may be added with the same key several times.
    """

    def __init__(self) -> None:
        self.root = TrieNode()

    def add(self, pattern: bytes, destination: object) -> None:
        """Add a destination under a binding key.

        :param pattern: the binding key, in which `*` and `#` stand for words.
        """
        node = self.root
        for word in words_of(pattern):
            child = node.children.get(word)
            if child is None:
                child = TrieNode()
                child.any = word == b"#"
                node.children[word] = child
            node = child
        node.ends[destination] = node.ends.get(destination, 0) + 1

    def remove(self, pattern: bytes, destination: object) -> None:
        """Remove a destination from a binding key: undo one call of `add` with this pattern and destination."""
        path: list[tuple[TrieNode, bytes]] = []
        node = self.root
        for word in words_of(pattern):
            path.append((node, word))
            node = node.children[word]
        left = node.ends[destination] - 1
        if left:
            node.ends[destination] = left
            return
        del node.ends[destination]
        while path and not node.ends and not node.children:
            node, word = path.pop()
            del node.children[word]

    def match(self, routing_key: bytes) -> dict[object, bool]:
        """Return the destinations that a routing key matches, each once, as the keys of a dict (an ordered set)."""
        words = words_of(routing_key)
        count = len(words)
        found: dict[object, bool] = {}
        # Each node is visited once for each number of matched words. With several `#` in a pattern the number of paths
        # to a node multiplies, but not the number of its continuations.
        seen: set[tuple[int, int]] = set()
        stack: list[tuple[TrieNode, int]] = [(self.root, 0)]
        while stack:
            node, used = stack.pop()
            state = (id(node), used)
            if state in seen:
                continue
            seen.add(state)
            if used == count:
                for destination in node.ends:
                    found[destination] = True
            any_words = node.children.get(b"#")
            if any_words is not None:
                stack.append((any_words, used))
            if used < count:
                if node.any:
                    stack.append((node, used + 1))
                one = node.children.get(words[used])
                # A routing key may itself contain the words `*` and `#`. The wildcard branches match them.
                if one is not None and words[used] not in (b"*", b"#"):
                    stack.append((one, used + 1))
                star = node.children.get(b"*")
                if star is not None:
                    stack.append((star, used + 1))
        return found


def words_of(key: bytes) -> list[bytes]:
    """Split a routing or binding key at its dots into words.

    An empty key has no words, so that `*` does not match it. A single dot has two empty words.
    """
    return key.split(b".") if key else []
