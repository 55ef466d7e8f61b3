"""A job as text and as value: what is trained, by whom, through which channel, until when. Nothing here runs one."""
