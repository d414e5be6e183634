"""Where requests wait for their turn: `waiting_room` is a queue of one gateway, `shared/` that of all gateways."""
