"""Where the origins and networks of the synthetic Internet are. Cities and shares are rough."""

from __future__ import annotations

#: region, latitude, longitude
REGIONS = (
    ("us-east", 39.0, -77.5), ("us-west", 45.6, -121.2), ("eu-west", 53.3, -6.3), ("ap-northeast", 35.7, 139.7),
    ("sa-east", -23.5, -46.6), ("ap-southeast", 1.3, 103.8), ("eu-central", 50.1, 8.7), ("ap-south", 19.1, 72.9),
    ("au-southeast", -33.9, 151.2), ("af-south", -33.9, 18.4), ("me-south", 26.1, 50.6), ("us-central", 41.3, -95.9),
    ("ca-central", 45.5, -73.6), ("eu-north", 59.3, 18.1), ("ap-east", 22.3, 114.2), ("eu-west-2", 51.5, -0.1),
    ("eu-south", 45.5, 9.2), ("eu-west-3", 48.9, 2.4), ("us-west-2", 37.4, -121.9), ("us-east-2", 40.0, -83.0),
    ("ap-northeast-2", 37.6, 127.0), ("ap-northeast-3", 34.7, 135.5), ("ap-southeast-2", -6.2, 106.8),
    ("ap-south-2", 28.6, 77.2), ("sa-west", -33.4, -70.7), ("me-west", 32.1, 34.8), ("eu-central-2", 47.4, 8.5),
    ("eu-east", 52.2, 21.0), ("eu-north-2", 60.6, 27.2), ("us-south", 32.8, -96.8), ("us-southeast", 33.2, -80.0),
    ("ca-west", 51.0, -114.1), ("au-southeast-2", -37.8, 145.0), ("ap-east-2", 24.1, 120.6), ("me-central", 25.3, 51.5),
    ("eu-southwest", 40.4, -3.7),
)  # fmt: skip

#: country, continent, its colo, latitude, longitude, extent in degrees, rough share of the ASNs in thousandths
COUNTRIES = (
    ("US", "NA", "IAD", 39, -95, 12, 190), ("BR", "SA", "GRU", -15, -48, 8, 95), ("RU", "EU", "DME", 55, 45, 9, 58),
    ("IN", "AS", "BOM", 21, 78, 6, 48), ("GB", "EU", "LHR", 52, -1, 2, 32), ("DE", "EU", "FRA", 51, 10, 2, 31),
    ("ID", "AS", "CGK", -4, 110, 6, 38), ("AU", "OC", "SYD", -29, 145, 7, 24), ("PL", "EU", "WAW", 52, 19, 2, 26),
    ("CA", "NA", "YYZ", 47, -85, 9, 19), ("UA", "EU", "KBP", 49, 31, 3, 22), ("CN", "AS", "PEK", 33, 112, 7, 25),
    ("FR", "EU", "CDG", 47, 3, 2, 19), ("NL", "EU", "AMS", 52, 5, 1, 18), ("JP", "AS", "NRT", 36, 138, 3, 12),
    ("AR", "SA", "EZE", -34, -61, 5, 17), ("IT", "EU", "MXP", 43, 12, 3, 15), ("ES", "EU", "MAD", 40, -4, 3, 15),
    ("BD", "AS", "DAC", 24, 90, 1, 20), ("HK", "AS", "HKG", 22, 114, 1, 11), ("KR", "AS", "ICN", 37, 127, 1, 11),
    ("ZA", "AF", "JNB", -28, 27, 4, 10), ("MX", "NA", "QRO", 22, -102, 5, 10), ("TR", "EU", "IST", 39, 33, 4, 10),
    ("SE", "EU", "ARN", 59, 16, 3, 10), ("CH", "EU", "ZRH", 47, 8, 1, 9), ("CO", "SA", "BOG", 5, -74, 3, 9),
    ("VN", "AS", "SGN", 16, 107, 4, 9), ("TH", "AS", "BKK", 14, 101, 3, 8), ("PH", "AS", "MNL", 13, 122, 3, 8),
    ("SG", "AS", "SIN", 1, 104, 0.2, 8), ("CZ", "EU", "PRG", 50, 15, 1, 8), ("RO", "EU", "OTP", 46, 25, 2, 10),
    ("IR", "AS", "DXB", 33, 53, 4, 8), ("NZ", "OC", "AKL", -40, 175, 3, 7), ("AT", "EU", "VIE", 48, 15, 1, 6),
    ("BG", "EU", "SOF", 43, 25, 1, 7), ("NO", "EU", "OSL", 61, 9, 3, 5), ("DK", "EU", "CPH", 56, 10, 1, 5),
    ("CL", "SA", "SCL", -33, -71, 5, 5), ("MY", "AS", "KUL", 4, 105, 4, 5), ("NG", "AF", "LOS", 8, 6, 3, 5),
    ("KE", "AF", "NBO", -1, 37, 2, 4), ("EG", "AF", "CAI", 29, 31, 2, 2), ("PK", "AS", "KHI", 29, 69, 3, 5),
    ("AE", "AS", "DXB", 24, 54, 1, 3), ("IL", "AS", "TLV", 32, 35, 0.5, 5), ("PE", "SA", "LIM", -10, -76, 4, 4),
    ("FI", "EU", "HEL", 62, 25, 3, 4), ("TW", "AS", "TPE", 24, 121, 1, 4),
)  # fmt: skip
