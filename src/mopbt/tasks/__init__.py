"""Tasks that come with the library; nothing else in it imports them."""
