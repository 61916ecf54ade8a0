"""`warren doctor`: checks of a broker and of an App against it; the page doctor of the documentation lists their codes."""
