"""Pipeline schedules: each final class is one order of work of the devices."""
