"""Write the text of the task "prose-transformer": the prose of the notebooks in ASCII.

Run it only to change the task: figures measured on the old text do not apply to the new one. Code,
links' targets and tables are left out.
"""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_PLAIN = str.maketrans(
    {"—": "-", "–": "-", "’": "'", "‘": "'", "“": '"', "”": '"', "×": "x", "µ": "u", "…": "..."}
)


def prose_of(notebook: dict) -> list[str]:
    """Return the paragraphs of a notebook's markdown cells, without headings' marks, code blocks,
    tables, HTML and links' targets.
    """
    paragraphs = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        text = "".join(cell["source"])
        text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
        text = re.sub(r"<[^>]+>", " ", text)
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
        for part in re.split(r"\n\s*\n", text):
            lines = [line.strip() for line in part.splitlines() if not line.strip().startswith("|")]
            plain = " ".join(re.sub(r"^(#+|[-*]|\d+\.)\s+", "", line) for line in lines)
            plain = re.sub(r"[*_`$\\]+", "", plain).translate(_PLAIN)
            plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
            plain = re.sub(r"\s+", " ", plain).strip()
            if len(plain) > 20:
                paragraphs.append(plain)
    return paragraphs


def main() -> None:
    """Write the file."""
    notebooks = sorted((_ROOT / "notebooks").glob("0*.ipynb"))
    paragraphs = [
        paragraph
        for path in notebooks
        for paragraph in prose_of(json.loads(path.read_text(encoding="utf-8")))
    ]
    path = _ROOT / "gpulab" / "training" / "data" / "prose.txt"
    path.write_text("\n".join(paragraphs) + "\n", encoding="ascii")
    print(
        f"{path.relative_to(_ROOT)}: {path.stat().st_size:,} characters of {len(paragraphs):,} "
        "paragraphs"
    )


if __name__ == "__main__":
    main()
