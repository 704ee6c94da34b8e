#!/bin/sh
# Charges an order: the body is on stdin, the outcome is the exit code, the result is stdout.
ledger="${LEDGER:-quickstart/out/ledger.txt}"
order=$(cat)
case "$order" in
*'"card":"declined"'*)
    echo '{"code":"CardDeclined","detail":"insufficient funds"}'
    exit 65 # the business said no: cached, never asked again
    ;;
*'"card":"flaky"'*)
    if [ "$ACKORD_ATTEMPT" -lt 3 ]; then
        echo "the card network did not answer" >&2
        exit 75 # transient: tried again
    fi
    ;;
*'"card":"broken"'*)
    echo "the card network never answers" >&2
    exit 75
    ;;
esac
echo "charge $ACKORD_KEY" >>"$ledger"
echo "{\"charge\":\"ch_$ACKORD_MESSAGE_ID\"}"
