"""Price list and quotes: `/api/v1/price_schedules`, `/api/v1/price_quotes` (contract §2.6)."""
