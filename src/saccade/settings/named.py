"""Texts such as "name:option=value,option=value": a task, a head or a plug-in with its options."""


def split_options(text: str) -> list[str]:
    """Split options at commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def combine(below: str | None, above: str | None) -> str | None:
    """Return "name:option=value,..." with the options of another text over it; the other text if its name differs."""
    if below is None or above is None or name_of(below) != name_of(above):
        return above
    options = {**texts_of(below), **texts_of(above)}
    return f"{name_of(below)}:{','.join(options.values())}" if options else name_of(below)


def name_of(text: str) -> str:
    """Return the name in "name:option=value,..."."""
    return text.partition(":")[0].strip()


def texts_of(text: str) -> dict[str, str]:
    """Return the options in "name:option=value,..." by name, each as it was written."""
    return {item.partition("=")[0].strip(): item.strip() for item in split_options(text.partition(":")[2])}
