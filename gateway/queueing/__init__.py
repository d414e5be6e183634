"""Where requests wait for their turn: `waiting_room` is one queue of one gateway; `shared/` keeps the order of all."""
