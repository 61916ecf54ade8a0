set -eu

# 1. Create the App's topology on RabbitMQ from exported definitions.
warren topology export shop:app --url "$RABBITMQ_URL" -o shop.json
rabbitmqctl import_definitions < shop.json

# 2. Compare every argument and binding with what the App declares, and list what differs on RabbitMQ.
warren topology plan shop:app --url "$RABBITMQ_URL" --management-url "$RABBITMQ_MANAGEMENT_URL"

# 3. Consume from both brokers and publish to the new one. Stop the old one when its queues are empty.
warren run shop:app --url "$RABBITMQ_URL" &
new=$!
warren publish shop:OrderPlaced '{"order_id": "42", "total": "9.90"}' --url "$RABBITMQ_URL"
warren call shop:GetQuote '{"sku": "lamp"}' --timeout 60 --url "$RABBITMQ_URL"
kill -TERM $new
wait $new
