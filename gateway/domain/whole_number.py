"""A whole number that a client writes in a query parameter."""


def whole_number(text: str, least: int, most: int) -> int | None:
    """Return the number that the text writes in the digits 0 to 9; None unless it is from `least` to `most`.

    A text with more digits than `most` has is no number here, whatever it begins with: reading it would take the
    longer the longer it is, and Python refuses more than 4,300 digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        return None
    number = int(text)
    return number if least <= number <= most else None
