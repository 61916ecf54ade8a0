set -eu

warren topology apply shop:app          # create queues, exchanges and bindings before anything runs
warren topology plan shop:app           # exit status 0: the broker has everything

warren run shop:app --workers 2 &
service=$!

warren publish shop:OrderPlaced '{"order_id": "42", "total": "9.90"}'
printf '%s\n' '{"order_id": "43", "total": "1"}' '{"order_id": "44", "total": "2"}' |
    warren publish shop:OrderPlaced - --lines --json
warren publish order.unknown 'a text' --exchange orders --header origin=shell

warren call shop:GetQuote '{"sku": "lamp"}' --timeout 60
warren call shop:GetQuote '{"sku": "desk"}' || echo "status $?"

warren asyncapi shop:app --title Shop -o shop.asyncapi.json

kill -TERM $service                     # graceful shutdown: handlers finish first
wait $service
