"""Pipeline schedules: each final class is a schedule, the order of work of the devices of a pipeline."""
