"""How findings reach people and programs. Reports only read."""
