set -eu

# 1. The same topology on RabbitMQ: what the App declares, as definitions.
warren topology export shop:app --url "$RABBITMQ_URL" -o shop.json
rabbitmqctl import_definitions < shop.json

# 2. It is all there, argument by argument, with its bindings; and what will be different is said.
warren topology plan shop:app --url "$RABBITMQ_URL" --management-url "$RABBITMQ_MANAGEMENT_URL"

# 3. Consumers on both brokers, publishers on the new one; when the old queues are empty, only the new one is left.
warren run shop:app --url "$RABBITMQ_URL" &
new=$!
warren publish shop:OrderPlaced '{"order_id": "42", "total": "9.90"}' --url "$RABBITMQ_URL"
warren call shop:GetQuote '{"sku": "lamp"}' --timeout 60 --url "$RABBITMQ_URL"
kill -TERM $new
wait $new
