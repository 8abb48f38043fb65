"""People, workspaces, roles, and the gates to everybody else's rows."""
