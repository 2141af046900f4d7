"""Authentication, policies, rates and reservations of calls; free of web frameworks."""
