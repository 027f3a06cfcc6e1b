"""Elements of HTML and SVG. Text and attributes are escaped by the serialiser, in one place, whoever wrote them."""

from xml.etree import ElementTree as ET

from kernelwright.core.foreign import visible

Element = ET.Element
Child = Element | str | None


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Element:
    """Return an element; `stroke_width` is written `stroke-width`, `class_` is `class`, None is left out."""
    element = Element(name)
    for key, value in attributes.items():
        if value is not None:
            element.set(key.rstrip("_").replace("_", "-"), _spelled(value))
    add(element, *children)
    return element


def add(element: Element, *children: Child) -> Element:
    """Append children and text to an element, and return it."""
    for child in children:
        if isinstance(child, str):
            _add_text(element, visible(child))
        elif child is not None:
            element.append(child)
    return element


def _add_text(element: Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def _spelled(value: str | float) -> str:
    return visible(value) if isinstance(value, str) else f"{round(value, 2):g}"


def rendered(element: Element) -> str:
    """Return an element as HTML."""
    return ET.tostring(element, encoding="unicode", method="html")
