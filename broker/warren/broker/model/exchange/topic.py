"""The bindings of a topic exchange as a trie of words, so that a publish costs its own words and what matches.

`*` stands for exactly one word, `#` for none or more (https://www.rabbitmq.com/tutorials/tutorial-five-python).
"""

from __future__ import annotations


class TrieNode:
    """The bindings whose pattern ends here, and the words that may follow."""

    def __init__(self) -> None:
        self.any = False
        """It stands for none or more words: whoever is here may use up another one."""
        self.children: dict[bytes, TrieNode] = {}
        self.ends: dict[object, int] = {}


class TopicTrie:
    """Patterns and what each leads to; the same destination may stand under one pattern several times."""

    def __init__(self) -> None:
        self.root = TrieNode()

    def add(self, pattern: bytes, destination: object) -> None:
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
        """Take one away; the caller knows that it is there."""
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
        """The destinations that the key reaches, each once, as the keys of a dict (a set that keeps its order)."""
        words = words_of(routing_key)
        count = len(words)
        found: dict[object, bool] = {}
        # Each position of the trie is visited once for each number of words used up: with several `#` in a pattern, the
        # ways to reach a node multiply, its continuations do not.
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
                # A key may itself contain the words `*` and `#`: they are found as wildcards, once.
                if one is not None and words[used] not in (b"*", b"#"):
                    stack.append((one, used + 1))
                star = node.children.get(b"*")
                if star is not None:
                    stack.append((star, used + 1))
        return found


def words_of(key: bytes) -> list[bytes]:
    """The words between the dots. An empty key has none, so that `*` does not match it; a dot alone has two empty ones."""
    return key.split(b".") if key else []
