#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the text of an HTML page's article: gemma_terms.py PAGE.html"""
import html.parser
import re
import sys

BLOCKS = {"p", "h1", "h2", "h3", "h4", "li", "div", "tr", "br", "section", "ul", "ol"}
LEFT_OUT = {"script", "style", "button", "nav", "svg"}


class Article(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.inside = self.skipped = 0
        self.text = []

    def handle_starttag(self, tag, attrs):
        self.inside += tag == "article"
        self.skipped += tag in LEFT_OUT
        if tag in BLOCKS:
            self.text.append("\n")

    def handle_endtag(self, tag):
        self.inside -= tag == "article"
        self.skipped -= tag in LEFT_OUT
        if tag in BLOCKS:
            self.text.append("\n")

    def handle_data(self, data):
        if self.inside and not self.skipped:
            self.text.append(re.sub(r"\s+", " ", data))


def main():
    article = Article()
    with open(sys.argv[1], encoding="utf-8") as page:
        article.feed(page.read())
    lines = (line.strip() for line in "".join(article.text).splitlines())
    text = "\n".join(line for line in lines if line)
    if len(text.split()) < 500:
        sys.exit(f"error: {sys.argv[1]} holds no article with terms")
    print(text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
