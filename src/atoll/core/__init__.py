"""The ideas of Atoll: effects, parties, the wire, methods. Nothing here knows a framework, a file or a socket."""
