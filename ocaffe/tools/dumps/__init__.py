"""Dumps that other tools made of the values of a net, beside ocaffe's: `read` reads them, `values` compares, `page` writes the page."""
