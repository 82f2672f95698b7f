"""Makes orders.csv: a head, and 100,000 lines."""

with open("orders.csv", "w", encoding="ascii") as file:
    file.write("order,cents\n")
    file.writelines(f"{number},{number % 1000}\n" for number in range(100_000))
